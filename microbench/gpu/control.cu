/*
 * Measures: execution.launch_s, the time that one more kernel adds to a queue of kernels (`empty`; in a graph, as
 * kernels are timed, where there are graphs), and execution.barrier_s, the time that a block of eight warps loses at a
 * barrier (`barrier`).
 *
 * Spoiled by: the host falling behind (a graph holds n or 2n launches; without graphs the host's pace is measured); work between the barriers
 * (there is none, and a loop turn holds sixteen); other blocks on the unit (one block per unit).
 *
 * Proof: `empty` has one store; `barrier` counts its turns, and the compiler may not remove a barrier.
 */
#include "portable.h"

extern "C" __global__ void __launch_bounds__(64) empty(const int* p, const int* in, int* out) { out[THREAD] = p[1] + in[0]; }

extern "C" __global__ void __launch_bounds__(1024) barrier(const int* p, const int* in, int* out) {
  const int steps = p[0];
  int turns = in[0];
#pragma unroll 1
  for (int s = 0; s < steps; ++s) {
#pragma unroll
    for (int n = 0; n < 16; ++n) __syncthreads();
    turns += p[1];
  }
  out[THREAD] = turns;
}
