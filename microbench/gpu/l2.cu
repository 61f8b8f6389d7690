/*
 * Measures: bytes per second from the shared cache while all data stay in it (memory_layers.l2.bandwidth_bytes_per_s).
 * Regions of a half to four times the stated size of the cache also show the size at which the time per byte is halfway
 * (in logarithms) to that of global memory (memory_layers.l2.capacity_bytes).
 *
 * Spoiled by: hits in L1 (loads go around it; where they cannot, every block walks over a region that is far larger
 * than L1); launch and start-up (2n steps minus n).
 *
 * Proof: the sum of what was read is known, so every vector was loaded; 16 bytes per load and four independent loads
 * per thread and step keep more in flight than the cache needs; the same kernel over a larger region is slower, so
 * neither issue nor arithmetic bounds it.
 */
#include "portable.h"

extern "C" __global__ void __launch_bounds__(1024) sweep(const int* p, const int* in, int* out) {
  const int steps = p[0];
  const unsigned vectors = p[1], width = blockDim.x;  // the region is a multiple of four widths
  const int4* from = (const int4*)in;
  unsigned at = blockIdx.x * 4 * width % vectors + threadIdx.x;
  int sum = 0;
#pragma unroll 1
  for (int s = 0; s < steps; ++s) {
    const int4 a = LOAD_BEYOND_L1(from + at), b = LOAD_BEYOND_L1(from + (at + width));
    const int4 c = LOAD_BEYOND_L1(from + (at + 2 * width)), d = LOAD_BEYOND_L1(from + (at + 3 * width));
    sum += a.x + a.y + a.z + a.w + b.x + b.y + b.z + b.w + c.x + c.y + c.z + c.w + d.x + d.y + d.z + d.w;
    at += 4 * width;
    if (at >= vectors) at -= vectors;
  }
  out[THREAD] = sum;
}
