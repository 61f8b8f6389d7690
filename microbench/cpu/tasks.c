/* What a task costs beside its elements.
 *
 * Measures: execution.barrier_s, on a CPU the loop overhead of a task of an element-wise program: finding its rows from its
 *   number, starting and leaving the inner loop (the mispredicted exit among it). A task is a short row in L1; the time per
 *   task over the length of the row is a line whose intercept this is.
 * Spoiled by: a compiler that merges the rows of neighbouring tasks (their number passes a pin).
 * Proof: the slope is that of long rows in L1, so what is left of a short one is not its elements.
 */
#include "probe.h"

/* `repeat` tasks of `bytes` each, out of 16 KiB; the rows are found as the templates find them. */
KERNEL(task_rows) {
  long vectors = bytes / VECTOR_BYTES, rows = 8192 / bytes, columns = 4;
  PIN_INT(columns);
  floats zero = (floats){0};
  PIN(zero);
  for (long t = 0; t < repeat; t++) {
    long task = t;
    PIN_INT(task);
    long row = task / columns % rows, part = task % columns;
    floats *x = (floats *)(data + (row ^ (part & 0)) * bytes), *y = (floats *)((char *)x + 8192);
    _Pragma("GCC unroll 1") for (long v = 0; v < vectors; v++) {
      floats value = x[v];
      PIN(value);
      y[v] = value + zero;
    }
  }
}
