/*
 * Measures: what a short contiguous run costs. Lanes read runs of 4 to 128 bytes, one run per 256 bytes, at several
 * offsets; a run that touches k transactions costs k times one. The size that explains all runs and offsets is the
 * transaction: over a region in L2 memory_layers.l2.transaction_bytes (of global memory, too:
 * what L2 is asked for is what a load moves at least), over fresh global memory
 * memory_layers.global.fetch_bytes (what one access brings at least from behind the cache).
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
