/* Bandwidth of a memory layer.
 *
 * Measures: bandwidth_bytes_per_s of l1, l2, l3 and dram (loads, all cores at once), bandwidth_per_teu_bytes_per_s (one
 *   core alone) and compute.ops_per_cycle_per_unit.load_store (loads from L1 per cycle); for information, also the
 *   bandwidth of stores and copies. A core sweeps a block that fits in the layer but not in the layer before it.
 * Spoiled by: TLB misses (blocks lie in large pages where the system has them), a block that partly fits the layer before
 *   (at least three times its size, except next to a small L3), memory of another node (each thread touches its own first).
 * Proof: loads go to registers and are used by nothing, one instruction per vector and a loop of eight: there is nothing
 *   else to wait for. In L1 they fill the load ports (load_store is a whole number of vectors per cycle).
 */
#include "probe.h"

#define LINES(x) x(0) x(1) x(2) x(3) x(4) x(5) x(6) x(7)
#define AT(p, n) (*(volatile floats *)((p) + (n) * VECTOR_BYTES))

KERNEL(load_all) {
  for (long r = 0; r < repeat; r++)
    for (char *p = data, *end = data + bytes; p < end; p += 8 * VECTOR_BYTES) {
#define LOAD(n) { floats v = AT(p, n); PIN(v); }
      LINES(LOAD)
    }
}

KERNEL(store_all) {
  floats one = (floats){0} + 1.0f;
  PIN(one);
  for (long r = 0; r < repeat; r++)
    for (char *p = data, *end = data + bytes; p < end; p += 8 * VECTOR_BYTES) {
#define STORE(n) AT(p, n) = one;
      LINES(STORE)
    }
}

/* The first half into the second: `bytes` are moved, half of them read. */
KERNEL(copy_half) {
  for (long r = 0; r < repeat; r++)
    for (char *p = data, *end = data + bytes / 2; p < end; p += 8 * VECTOR_BYTES) {
#define COPY(n) AT(p + bytes / 2, n) = AT(p, n);
      LINES(COPY)
    }
}
