/* What a task of rows costs beside its elements.
 *
 * Measures: execution.barrier_s, on a CPU the time from one task to the next where rows start anew: finding the row, folding
 *   its maximum and its sum over the lanes, a division by it, and the ends of three inner loops that nobody foresees. The
 *   time per task over the length of its row is a line; this is its intercept.
 * Spoiled by: a compiler that merges the rows of neighbouring tasks (their number passes a pin), a predictor that learns
 *   where the rows end (their lengths vary).
 * Proof: the slope is that of rows four times as long, so what is left of a short one is not its elements; all is in L1.
 */
#include "probe.h"

#if defined(__clang__) || __GNUC__ >= 12
#if VECTOR_BYTES == 64
#define SWAP8(x) __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7)
#define SWAP4(x) __builtin_shufflevector(x, x, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11)
#define SWAP2(x) __builtin_shufflevector(x, x, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13)
#define SWAP1(x) __builtin_shufflevector(x, x, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14)
#elif VECTOR_BYTES == 32
#define SWAP4(x) __builtin_shufflevector(x, x, 4, 5, 6, 7, 0, 1, 2, 3)
#define SWAP2(x) __builtin_shufflevector(x, x, 2, 3, 0, 1, 6, 7, 4, 5)
#define SWAP1(x) __builtin_shufflevector(x, x, 1, 0, 3, 2, 5, 4, 7, 6)
#else
#define SWAP2(x) __builtin_shufflevector(x, x, 2, 3, 0, 1)
#define SWAP1(x) __builtin_shufflevector(x, x, 1, 0, 3, 2)
#endif
#else /* older GCC: the lanes as numbers */
static inline floats swapped(floats x, int distance) {
  ints lane;
  for (int n = 0; n < VECTOR_BYTES / 4; n++) lane[n] = n ^ distance;
  return __builtin_shuffle(x, lane);
}
#define SWAP8(x) swapped(x, 8)
#define SWAP4(x) swapped(x, 4)
#define SWAP2(x) swapped(x, 2)
#define SWAP1(x) swapped(x, 1)
#endif

static inline floats larger(floats x, floats y) {
  ints mine = x > y;
  return (floats)(((ints)x & mine) | ((ints)y & ~mine));
}

static inline floats sum(floats x, floats y) { return x + y; }

#if VECTOR_BYTES == 64
#define FOLD(f, x) (x = f(x, SWAP8(x)), x = f(x, SWAP4(x)), x = f(x, SWAP2(x)), x = f(x, SWAP1(x)))
#elif VECTOR_BYTES == 32
#define FOLD(f, x) (x = f(x, SWAP4(x)), x = f(x, SWAP2(x)), x = f(x, SWAP1(x)))
#else
#define FOLD(f, x) (x = f(x, SWAP2(x)), x = f(x, SWAP1(x)))
#endif

/* `repeat` tasks of `bytes` and up to three times four vectors more each, in 64 KiB; rows are found from the number of a
 * task as the templates find them: y = (x - max(x)) / sum(x - max(x)), four vectors at a time. */
KERNEL(task_rows) {
  const unsigned long columns = 5, rows = 3;
  long vectors = bytes / VECTOR_BYTES;
  for (long t = 0; t < repeat; t++) {
    unsigned long task = t;
    PIN_INT(task);
    unsigned long row = task / columns % rows, column = task % columns;
    floats *x = (floats *)(data + (row * columns + column) * 4 * VECTOR_BYTES), *y = (floats *)((char *)x + 20480);
    long count = vectors + 4 * (long)((task * 0x9E3779B97F4A7C15UL) >> 62);
    floats top[4], total[4];
    _Pragma("GCC unroll 4") for (int n = 0; n < 4; n++) top[n] = x[n], total[n] = (floats){0};
    _Pragma("GCC unroll 1") for (long v = 4; v < count; v += 4)
        _Pragma("GCC unroll 4") for (int n = 0; n < 4; n++) top[n] = larger(top[n], x[v + n]);
    floats most = larger(larger(top[0], top[1]), larger(top[2], top[3]));
    FOLD(larger, most);
    _Pragma("GCC unroll 1") for (long v = 0; v < count; v += 4)
        _Pragma("GCC unroll 4") for (int n = 0; n < 4; n++) {
          total[n] += x[v + n] - most;
          PIN(total[n]);
        }
    floats all = (total[0] + total[1]) + (total[2] + total[3]);
    FOLD(sum, all);
    floats inverse = 1.0f / all;
    _Pragma("GCC unroll 1") for (long v = 0; v < count; v += 4)
        _Pragma("GCC unroll 4") for (int n = 0; n < 4; n++) {
          floats value = (x[v + n] - most) * inverse;
          PIN(value);
          y[v + n] = value;
        }
  }
}
