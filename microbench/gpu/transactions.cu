/*
 * Measures: the cost of short contiguous runs. Lanes read runs of 4 to 128 bytes, one run per 256 bytes, at several
 * offsets; a run that touches k transactions costs k times as much as a run that touches one. The size that explains
 * all runs and offsets is the transaction. Over a region in L2, it is memory_layers.l2.transaction_bytes (also the
 * value for global memory, because a load requests at least that much from L2). Over global memory that is not cached,
 * it is memory_layers.global.fetch_bytes (the minimum that one access fetches from behind the cache).
 *
 * Spoiled by: a bound other than bytes (four loads per step are independent, and all warps are resident; where short
 * runs are bound by the number of lines a unit looks up, the times fit no size and nothing is reported); neighbours
 * read later out of the cache (runs are never next to each other, and fresh memory is never read twice).
 *
 * Proof: the sum of what was read is known; aligned runs of half a transaction take as long as whole ones, and the
 * same run moved across a border takes twice as long, which is what the fit requires.
 */
#include "portable.h"

extern "C" __global__ void __launch_bounds__(1024) runs(const int* p, const int* in, int* out) {
  const int steps = p[0];
  const unsigned words = p[1], pitch = p[2], run = p[3], offset = p[4], jump = p[5], first = p[6];
  unsigned at = (first + THREAD / run * pitch) % words + offset + THREAD % run;
  int sum = 0;
#pragma unroll 1
  for (int s = 0; s < steps; ++s) {
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      sum += LOAD_BEYOND_L1(in + at);
      at += jump;
      if (at >= words) at -= words;
    }
  }
  out[THREAD] = sum;
}
