/* What a task costs beside its elements.
 *
 * Measures: execution.barrier_s, on a CPU the loop overhead of a task of an element-wise program: computing its rows
 *   from its index, and entering and leaving the inner loop (including the mispredicted exit). A task is a short row in
 *   L1; the time per task is a linear function of the row length, and its intercept is this overhead.
 * Spoiled by: a compiler that merges the rows of neighbouring tasks (their number passes a pin), a predictor that learns
 *   where the rows end (their lengths vary by up to three vectors).
 * Proof: the slope is that of long rows in L1, so what is left of a short one is not its elements.
 */
#include "probe.h"

/* `repeat` tasks of `bytes` and up to three vectors more each, in 24 KiB; rows are found from the number of a task as the
 * templates find them. */
KERNEL(task_rows) {
  const unsigned long columns = 5, rows = 3;
  long vectors = bytes / VECTOR_BYTES;
  floats zero = (floats){0};
  PIN(zero);
  for (long t = 0; t < repeat; t++) {
    unsigned long task = t;
    PIN_INT(task);
    unsigned long row = task / columns % rows, column = task % columns;
    floats *x = (floats *)(data + (row * columns + column) * VECTOR_BYTES), *y = (floats *)((char *)x + 12288);
    long count = vectors + (long)((task * 0x9E3779B97F4A7C15UL) >> 62);
    _Pragma("GCC unroll 1") for (long v = 0; v < count; v++) {
      floats value = x[v];
      PIN(value);
      y[v] = value + zero;
    }
  }
}
