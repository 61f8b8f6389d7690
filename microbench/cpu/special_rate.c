/* Rate of exponentials as the code generator prints them.
 *
 * Measures: compute.ops_per_cycle_per_unit.special, in lanes per cycle and core, on all cores at once: the arithmetic
 *   of roller/templates/cpu/emit/mathlib.py (clipping, Cody-Waite reduction, a polynomial of degree five, two powers of
 *   two) over 4 KiB in L1; for information, also divisions and square roots.
 * Spoiled by: a compiler that does not vectorise the loop (its rate then is that of one lane, and the probe withdraws
 *   it), another polynomial.
 * Proof: arithmetic is 25 vector operations per load and store of L1, far beyond what L1 bounds.
 */
#include <string.h>
#include "probe.h"

static inline float power(int n) {
  float out;
  int bits = (n + 127) << 23;
  memcpy(&out, &bits, 4);
  return out;
}

static inline float exponential(float v) {
  float b = v > 88.72283f ? 88.72283f : (v < -87.33654f ? -87.33654f : v);
  float n = __builtin_floorf(b * 1.44269504f + 0.5f);
  float r = b - n * 0.693359375f - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  float mantissa = p * (r * r) + r + 1.0f;
  int i = (int)n, h = i >> 1;
  float value = mantissa * power(h) * power(i - h);
  return v > 88.72283f ? __builtin_inff() : (v < -87.33654f ? 0.0f : value);
}

#define OVER_L1(name, expression)                                    \
  KERNEL(name) {                                                     \
    const float *restrict x = (const float *)data;                   \
    float *restrict y = (float *)(data + bytes / 2);                 \
    long count = bytes / 8;                                          \
    for (long r = 0; r < repeat; r++) {                              \
      for (long i = 0; i < count; i++) y[i] = expression;            \
      __asm__ volatile("" ::: "memory");                             \
    }                                                                \
  }

OVER_L1(exp_float32, exponential(x[i]))
OVER_L1(divide_float32, 1.0f / x[i])
OVER_L1(root_float32, __builtin_sqrtf(x[i]))
