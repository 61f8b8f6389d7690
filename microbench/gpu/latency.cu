/*
 * Measures: the time from a load to the next load that needs its value: memory_layers.shared.latency_s (`near`),
 * memory_layers.l2.latency_s (`far` over a quarter of L2) and memory_layers.global.latency_s (`far` over four times
 * L2).
 *
 * Spoiled by: hits in a faster layer (`far` goes around L1, a random cycle visits every line before it comes back);
 * prefetching (the order is random); a cold address translation (the footprint is a few large pages); loop overhead
 * (sixteen loads per turn; a chain holds byte offsets from a fixed base, which loads add by themselves).
 *
 * Proof: one warp, every lane at the same place (which no compiler knows, or it would use scalar loads); the address of
 * a load is the value of the load before, so nothing overlaps. The place where the chain ends is known.
 */
#include "portable.h"

extern "C" __global__ void __launch_bounds__(64) far(const int* p, const int* in, int* out) {
  const int steps = p[0];
  const char* base = (const char*)in;
  unsigned at = p[1] + (threadIdx.x & p[2]);
#pragma unroll 1
  for (int s = 0; s < steps; ++s) {
#pragma unroll
    for (int n = 0; n < 16; ++n) at = LOAD_BEYOND_L1((const unsigned*)(base + at));
  }
  out[THREAD] = at;
}

extern "C" __global__ void __launch_bounds__(64) near(const int* p, const int* in, int* out) {
  __shared__ int tile[1024];
  const int steps = p[0];
  for (int i = threadIdx.x; i < 1024; i += blockDim.x) tile[i] = in[i];
  __syncthreads();
  const char* base = (const char*)tile;
  int at = p[1] + (threadIdx.x & p[2]);
#pragma unroll 1
  for (int s = 0; s < steps; ++s) {
#pragma unroll
    for (int n = 0; n < 16; ++n) at = *(const int*)(base + at);
  }
  out[THREAD] = at;
}
