/* Copies of single elements, as packing and scattered results make them.
 *
 * Measures: execution.element_gather_s (elements that lie far apart in the source are collected one by one into a row),
 *   .element_copy_s (rows of 28 elements are copied into rows of 30 whose borders are zero) and .element_scatter_s (the
 *   elements of vectors are stored far apart), in seconds per element, on one core, with source and target in L1 and
 *   L2.
 * Spoiled by: vectorised gathers (elements pass through a pin one by one), misses (64 KiB at most), rows that meet in one
 *   set of the cache (the pitch is odd in lines).
 * Proof: an element is one load and one store through a pinned register, and thirty of them share the start of a loop; the
 *   caches deliver several times faster (bandwidth.c).
 */
#include <string.h>
#include "probe.h"

#define PITCH 272 /* elements from row to row: 17 lines */

KERNEL(gather_elements) {
  const float *from = (const float *)data;
  float *to = (float *)(data + 40 * 1024);
  for (long r = 0; r < repeat; r++)
    for (long column = 0; column < 128; column++) {
      float *row = to + column % 64 * 32;
      _Pragma("GCC unroll 4") for (long n = 0; n < 32; n++) {
        float value = from[n * PITCH + column];
        PIN(value);
        row[n] = value;
      }
    }
  (void)bytes;
}

KERNEL(copy_rows) {
  const float *from = (const float *)data;
  float *to = (float *)(data + 40 * 1024);
  for (long r = 0; r < repeat; r++)
    for (long row = 0; row < 128; row++) {
      float *target = to + row * 30;
      const float *source = from + row * 28;
      long inner = 28;
      PIN_INT(inner); /* the templates' bounds are not known either: they depend on the task */
      target[0] = 0.0f;
      for (long n = 0; n < inner; n++) target[1 + n] = source[n];
      for (long n = inner + 1; n < 30; n++) target[n] = 0.0f;
      __asm__ volatile("" ::: "memory");
    }
  (void)bytes;
}

KERNEL(scatter_elements) {
  const float *from = (const float *)data;
  float *to = (float *)(data + 8 * 1024);
  for (long r = 0; r < repeat; r++)
    for (long column = 0; column < 128; column++) {
      floats value[32 * 4 / VECTOR_BYTES];
      memcpy(value, from + column % 32 * 32, sizeof value);
      _Pragma("GCC unroll 8") for (unsigned v = 0; v < sizeof value / sizeof *value; v++) PIN(value[v]);
      _Pragma("GCC unroll 32") for (int n = 0; n < 32; n++)
        ((volatile float *)to)[n * PITCH + column] = ((float *)value)[n];
    }
  (void)bytes;
}
