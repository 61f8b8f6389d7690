/* Micro-kernels of matrix products: rows by vectors of accumulators, operands from panels in L1.
 *
 * Measures: execution.step_issue_s, the time that a reduction step takes in addition to its multiply-adds, and how the
 *   rate depends on the number of accumulators in flight (limits.usable_vector_registers: how many there may be before
 *   operands spill). A step loads the vectors of one panel and, for each row of the other panel, one broadcast element,
 *   as the templates do.
 * Spoiled by: panels that leave L1 (16 KiB at most), alignment (panels start at a line), the compiler's own spills,
 *   which are the point: the template's loop meets them too.
 * Proof: tiles of few accumulators take the latency of a multiply-add per step, those of many its multiply-adds over the
 *   ports; the intercept of the latter over their multiply-adds is what the step itself costs.
 */
#include "probe.h"

#define STEPS 64

#define TILE(rows, vectors)                                                                          \
  KERNEL(tile_##rows##x##vectors) {                                                                  \
    floats acc[rows][vectors];                                                                       \
    const floats *wide = (const floats *)data;                                                       \
    const float *narrow = (const float *)(data + STEPS * vectors * sizeof(floats));                  \
    for (long i = 0; i < repeat; i++) {                                                              \
      const floats *b = wide;                                                                        \
      const float *a = narrow;                                                                       \
      _Pragma("GCC unroll 32") for (int r = 0; r < rows; r++)                                        \
          _Pragma("GCC unroll 8") for (int v = 0; v < vectors; v++) acc[r][v] = (floats){0};         \
      _Pragma("GCC unroll 1") for (int k = 0; k < STEPS; k++, b += vectors, a += rows)               \
          _Pragma("GCC unroll 32") for (int r = 0; r < rows; r++)                                    \
              _Pragma("GCC unroll 8") for (int v = 0; v < vectors; v++) acc[r][v] += a[r] * b[v];    \
      _Pragma("GCC unroll 32") for (int r = 0; r < rows; r++)                                        \
          _Pragma("GCC unroll 8") for (int v = 0; v < vectors; v++) PIN(acc[r][v]);                  \
    }                                                                                                \
    (void)bytes;                                                                                     \
  }

TILE(1, 1) TILE(2, 1) TILE(4, 1) TILE(4, 2) TILE(5, 2) TILE(6, 2) TILE(4, 3) TILE(7, 2)
#if VECTOR_REGISTERS == 32
TILE(8, 2) TILE(6, 3) TILE(10, 2) TILE(7, 3) TILE(12, 2) TILE(8, 3) TILE(6, 4) TILE(13, 2) TILE(9, 3) TILE(14, 2) TILE(7, 4)
TILE(15, 2)
#endif
EXPORT const int tile_steps = STEPS;
