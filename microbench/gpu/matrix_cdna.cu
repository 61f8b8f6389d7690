/*
 * Measures: multiply-adds per second of a CDNA matrix core (compute.ops_per_cycle_per_unit.matrix.float16, with the
 * clock): the 32x32x8 instruction of a wavefront. Runs only for a specification that gives such a rate; those of this
 * release do not, because no generated code uses it.
 *
 * Spoiled by: the dependence of an accumulator on itself (four independent ones per wavefront, two and more wavefronts
 * per SIMD).
 *
 * Proof: all elements of an operand are equal, so that the result does not depend on which lane holds which: after any
 * number of steps it is known. The loop holds nothing but the multiplications.
 */
#include "portable.h"

#if defined(__gfx908__) || defined(__gfx90a__) || defined(__gfx942__)

typedef _Float16 Half4 __attribute__((ext_vector_type(4)));
typedef float Float16 __attribute__((ext_vector_type(16)));

extern "C" __global__ void __launch_bounds__(512) matrix_float16(const int* p, const int* in, float* out) {
  const int steps = p[0];
  const _Float16 x = (_Float16)in[0], y = (_Float16)in[1];
  const Half4 a = {x, x, x, x}, b = {y, y, y, y};
  Float16 acc[4] = {};
#pragma unroll 1
  for (int s = 0; s < steps; ++s) {
#pragma unroll
    for (int j = 0; j < 4; ++j) acc[j] = __builtin_amdgcn_mfma_f32_32x32x8f16(a, b, acc[j], 0, 0, 0);
  }
  float sum = 0.0f;
#pragma unroll
  for (int j = 0; j < 4; ++j) sum += acc[j][0] * (j + 1);
  out[THREAD] = sum;
}

#endif
