/* Chains of fused multiply-adds: `count` independent accumulators of one vector type, `repeat` steps of each. */
#ifndef FMA_H
#define FMA_H
#include "probe.h"

#define FMA_CHAINS(name, type, element, count)                                              \
  KERNEL(name) {                                                                            \
    type acc[count], factor = (type){0} + (element)0.999, term = (type){0} + (element)1e-3; \
    PIN(factor);                                                                            \
    PIN(term);                                                                              \
    _Pragma("GCC unroll 64") for (int n = 0; n < count; n++) acc[n] = term + (element)n;    \
    for (long i = 0; i < repeat; i++) {                                                     \
      _Pragma("GCC unroll 64") for (int n = 0; n < count; n++) {                            \
        acc[n] = acc[n] * factor + term;                                                    \
        PIN(acc[n]);                                                                        \
      }                                                                                     \
    }                                                                                       \
    (void)data, (void)bytes;                                                                \
  }

/* Enough to hide four cycles on two ports (AVX2) or on four (others) and still fit the registers. */
#define MANY (VECTOR_REGISTERS == 16 ? 12 : 24)
#endif
