/*
 * Measures: the scratchpad of one unit. `vectors`: bytes per second of conflict-free 16-byte loads
 * (memory_layers.shared.bandwidth_bytes_per_s). `strided`: 4-byte loads whose lanes read words `stride` apart. Their
 * rate at stride 1 is compute.ops_per_cycle_per_unit.load_store. The factors by which larger strides take longer give
 * memory_layers.shared.banks and bank_width_bytes, because accesses of several lanes to one bank are served one after
 * the other.
 *
 * Spoiled by: address arithmetic (constant offsets, one addition per 8 or 16 loads); loads the compiler drops or keeps
 * in registers (the address moves with a number only `p` knows); too few warps to hide the latency (all that fit).
 *
 * Proof: the sums of what was read are known; time grows with the degree of conflict at equal instructions, so
 * the banks bound it and not the issue; the wide loads move four times the bytes per instruction at the same rate
 * of bytes, or more.
 */
#include "portable.h"

#define TILE_WORDS 8192
#define WINDOW 4095
// Words between the loads of a turn: all lanes move by one bank, and no two loads can become one instruction.
#define APART 257

extern "C" __global__ void __launch_bounds__(1024) vectors(const int* p, const int* in, int* out) {
  alignas(16) __shared__ int tile[TILE_WORDS];
  const int steps = p[0], bump = p[1];
  for (int i = threadIdx.x; i < TILE_WORDS; i += blockDim.x) tile[i] = in[i];
  __syncthreads();
  int at = threadIdx.x * 4 & WINDOW, sum = 0;
#pragma unroll 1
  for (int s = 0; s < steps; ++s) {
    const int* row = tile + at;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const int4 v = *(const int4*)(row + n * 512);
      sum += v.x + v.y + v.z + v.w;
    }
    at = at + bump & WINDOW;
  }
  out[THREAD] = sum;
}

extern "C" __global__ void __launch_bounds__(1024) strided(const int* p, const int* in, int* out) {
  alignas(16) __shared__ int tile[TILE_WORDS];
  const int steps = p[0], bump = p[1], stride = p[2], lanes = p[3];
  for (int i = threadIdx.x; i < TILE_WORDS; i += blockDim.x) tile[i] = in[i];
  __syncthreads();
  int at = threadIdx.x % lanes * stride & WINDOW, sum = 0;
#pragma unroll 1
  for (int s = 0; s < steps; ++s) {
    const int* row = tile + at;
#pragma unroll
    for (int n = 0; n < 16; ++n) sum += row[n * APART];
    at = at + bump & WINDOW;
  }
  out[THREAD] = sum;
}
