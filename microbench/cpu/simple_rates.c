/* Rates of additions and of conversions.
 *
 * Measures: compute.ops_per_cycle_per_unit.add (additions and maxima; the slower of the two), .add.float64, and
 *   .convert (float32 to int32 and back), in lanes per cycle and core, with operands in registers only, on all cores at
 *   once.
 * Spoiled by: too few independent chains, a compiler that folds repeated additions (every result is pinned).
 * Proof: no memory access, and as many independent chains as for the peak of multiply-adds.
 */
#include "fma.h"

#define CHAINS(name, type, element, step)                                                 \
  KERNEL(name) {                                                                          \
    type acc[MANY], term = (type){0} + (element)1e-3;                                     \
    PIN(term);                                                                            \
    _Pragma("GCC unroll 64") for (int n = 0; n < MANY; n++) acc[n] = term + (element)n;   \
    for (long i = 0; i < repeat; i++) {                                                   \
      _Pragma("GCC unroll 64") for (int n = 0; n < MANY; n++) {                           \
        step;                                                                             \
        PIN(acc[n]);                                                                      \
      }                                                                                   \
    }                                                                                     \
    (void)data, (void)bytes;                                                              \
  }

#if defined(__aarch64__)
#define MAXIMUM(x, y) __asm__ volatile("fmax %0.4s, %0.4s, %1.4s" : "+w"(x) : "w"(y))
#else
#define MAXIMUM(x, y) __asm__ volatile("vmaxps %1, %0, %0" : "+v"(x) : "v"(y))
#endif

CHAINS(add_float32, floats, float, acc[n] += term)
CHAINS(add_float64, doubles, double, acc[n] += term)
CHAINS(max_float32, floats, float, MAXIMUM(acc[n], term))
CHAINS(convert_float32, floats, float, ints whole = __builtin_convertvector(acc[n], ints); PIN(whole);
       acc[n] = __builtin_convertvector(whole, floats))
EXPORT const int rate_chains = MANY;
