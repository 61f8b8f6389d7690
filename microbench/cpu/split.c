/* Vector loads that touch two cache lines.
 *
 * Measures: execution.split_load_slots, the additional load slots that a load takes if it crosses a line: the time of
 *   loads that lie half in one line of L1 and half in the next, divided by the time of loads within one line, minus
 *   one.
 * Spoiled by: loads that cross a page (one in 64, which is left as it is), a block that leaves L1 (8 KiB).
 * Proof: both kernels differ in the offset alone, and the whole loads reach the rate of load_store.
 */
#include "probe.h"

typedef floats anywhere __attribute__((aligned(4)));

#define LOADS(name, offset)                                                       \
  KERNEL(name) {                                                                  \
    for (long r = 0; r < repeat; r++)                                             \
      for (char *p = data, *end = data + bytes; p < end; p += 512)                \
        _Pragma("GCC unroll 8") for (int n = 0; n < 8; n++) {                     \
          floats v = *(volatile anywhere *)(p + 64 * n + (offset));               \
          PIN(v);                                                                 \
        }                                                                         \
  }

LOADS(load_whole, 0)
LOADS(load_split, 64 - VECTOR_BYTES / 2)
