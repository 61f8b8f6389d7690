/*
 * Measures: execution.launch_s, the time one more kernel adds to a queue of them (`empty`; in a graph, as kernels are
 * timed, where there are graphs), and
 * execution.barrier_s, what a block of eight warps loses at a barrier (`barrier`).
 *
 * Spoiled by: the host falling behind (a graph holds n or 2n launches; without graphs the host's pace is measured); work between the barriers
 * (there is none, and a loop turn holds sixteen); other blocks on the unit (one block per unit).
 *
 * Proof: `empty` has one store; `barrier` counts its turns, and the compiler may not remove a barrier.
 */
// The few names that CUDA and HIP spell differently. Every probe takes `p` (integers; p[0] is the number of steps, so
// that no compiler knows it), reads `in`, and leaves in `out` what only the work it was timed for can produce.

#if defined(__HIPCC__) || defined(__HIP__)
#include <hip/hip_fp16.h>
#include <hip/hip_runtime.h>
// The vector L1 of a CU is far smaller than what the probes walk over; there is nothing to go around.
#define LOAD_BEYOND_L1(pointer) (*(pointer))
#else
#include <cuda_fp16.h>
#define LOAD_BEYOND_L1(pointer) __ldcg(pointer)
#endif

#define THREAD (blockIdx.x * blockDim.x + threadIdx.x)


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
