/*
 * Measures: the bandwidth from global memory as a function of the loads in flight. `walk_N` keeps N loads of 4 bytes
 * per thread in flight. The bandwidth as a function of warps times N gives
 * memory_layers.global.bandwidth_per_teu_bytes_per_s (the slope for few warps) and saturation_exponent (the knee).
 * `copy` reads and writes with as many accesses in flight as possible and gives
 * memory_layers.global.bandwidth_bytes_per_s, the bandwidth that kernels reach. The load of a warp covers whole
 * transactions, next to those of neighbouring warps.
 *
 * Spoiled by: data that is still in L2 (every run goes on where the last one stopped, over a buffer many times the
 * cache); launch and start-up (the time of 2n steps minus that of n); fewer resident warps than launched (blocks of two
 * warps, never more than fit); a clock that has not come up (the device is kept busy first).
 *
 * Proof: the address of a load depends on the value loaded before, so a thread never has more than N in flight and no
 * load can be left out; the place where a walk ends is known from the number of its steps. Time per step stays
 * constant while warps are added, until the bus is full, and arithmetic is three instructions per load.
 */
#include "portable.h"

template <int LOADS>
static __device__ __forceinline__ void walk(const int* p, const int* in, int* out) {
  const int steps = p[0];
  const unsigned words = p[1], threads = p[2], first = p[3];
  unsigned at[LOADS];
#pragma unroll
  for (int n = 0; n < LOADS; ++n) at[n] = (first + n * threads + THREAD) % words;
#pragma unroll 1
  for (int s = 0; s < steps; ++s) {
#pragma unroll
    for (int n = 0; n < LOADS; ++n) {
      at[n] += in[at[n]] * (LOADS * threads);  // `in` holds ones
      if (at[n] >= words) at[n] -= words;
    }
  }
  unsigned sum = 0;
#pragma unroll
  for (int n = 0; n < LOADS; ++n) sum += at[n] * (n + 1);
  out[THREAD] = sum;
}

extern "C" __global__ void __launch_bounds__(1024) walk_1(const int* p, const int* in, int* out) { walk<1>(p, in, out); }
extern "C" __global__ void __launch_bounds__(1024) walk_2(const int* p, const int* in, int* out) { walk<2>(p, in, out); }
extern "C" __global__ void __launch_bounds__(1024) walk_4(const int* p, const int* in, int* out) { walk<4>(p, in, out); }

extern "C" __global__ void __launch_bounds__(1024) copy(const int* p, const int* in, int* out) {
  const int steps = p[0];
  const unsigned vectors = p[1], threads = p[2];
  const int4* from = (const int4*)in;
  int4* to = (int4*)out;
  unsigned at = (unsigned)p[3] + THREAD;
#pragma unroll 1
  for (int s = 0; s < steps; ++s) {
    const int4 a = from[at], b = from[at + threads], c = from[at + 2 * threads], d = from[at + 3 * threads];
    to[at] = a;
    to[at + threads] = b;
    to[at + 2 * threads] = c;
    to[at + 3 * threads] = d;
    at += 4 * threads;
    if (at >= vectors) at -= vectors;
  }
}
