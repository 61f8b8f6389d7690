/* How far a core's memory traffic hides behind its arithmetic.
 *
 * Measures: execution.misses_in_flight, the `b` in the model's law for two stations that work at once: if memory alone
 *   takes M and arithmetic alone takes C, both together take max(M, C) * (1 - rho^(b+1)) / (1 - rho^b), with rho = min
 *   / max. Vectors come from L2, and each goes through several multiply-adds. C is the time of the same code on a block
 *   in L1, and M is the time of the loads alone. For information, the probe also finds how many independent pointer
 *   chases through memory a core sustains.
 * Spoiled by: M and C far apart (then any b fits: the multiply-adds per vector are chosen to make them nearly equal).
 * Proof: M, C and both together are timed one after the other, again and again, and differ in the block or in the
 *   multiply-adds alone; where nothing hides b is 1, where everything does its spread keeps it out.
 */
#include "fma.h"
#include "chase.h"

#define STREAM(count)                                                                              \
  KERNEL(stream_fma_##count) {                                                                     \
    floats acc[8], factor = (floats){0} + 0.999f;                                                  \
    PIN(factor);                                                                                   \
    _Pragma("GCC unroll 8") for (int n = 0; n < 8; n++) acc[n] = factor;                           \
    for (long r = 0; r < repeat; r++)                                                              \
      for (char *p = data, *end = data + bytes; p < end; p += 8 * VECTOR_BYTES) {                  \
        _Pragma("GCC unroll 8") for (int n = 0; n < 8; n++) {                                      \
          floats v = ((volatile floats *)p)[n];                                                    \
          _Pragma("GCC unroll 32") for (int k = 0; k < count; k++) {                               \
            acc[(n * count + k) % 8] = v * factor + acc[(n * count + k) % 8];                      \
            PIN(acc[(n * count + k) % 8]);                                                         \
          }                                                                                        \
        }                                                                                          \
      }                                                                                            \
    _Pragma("GCC unroll 8") for (int n = 0; n < 8; n++) PIN(acc[n]);                               \
  }

STREAM(1) STREAM(2) STREAM(3) STREAM(4) STREAM(6) STREAM(8) STREAM(12) STREAM(16)

/* Independent chases, each in its part of the block (filled by chase_fill). */
#define CHASES(count)                                                                              \
  KERNEL(chases_##count) {                                                                         \
    void *p[count];                                                                                \
    long part = bytes / count & ~4095L;                                                            \
    _Pragma("GCC unroll 32") for (int n = 0; n < count; n++) p[n] = ((struct Chase *)(data + n * part))->at; \
    for (long i = 0; i < repeat; i++)                                                              \
      _Pragma("GCC unroll 32") for (int n = 0; n < count; n++) p[n] = *(void *volatile *)p[n];     \
    _Pragma("GCC unroll 32") for (int n = 0; n < count; n++) ((struct Chase *)(data + n * part))->at = p[n]; \
  }                                                                                                \
  KERNEL(chases_fill_##count) {                                                                    \
    long part = bytes / count & ~4095L;                                                            \
    for (int n = 0; n < count; n++) chase_fill(repeat, data + n * part, part);                     \
  }

void chase_fill(long repeat, char *data, long bytes);
CHASES(1) CHASES(2) CHASES(4) CHASES(8) CHASES(12) CHASES(16) CHASES(24)
