/* Instructions a core issues per cycle when they are of the kinds a micro-kernel mixes.
 *
 * Measures: compute.ops_per_cycle_per_unit.issue: instructions per cycle and core, times the lanes of a vector (because
 *   the model counts lanes). Multiply-adds, vector loads that hit L1 and integer additions alternate, so that no kind
 *   of port limits the rate before the front end does. The best of three mixes counts.
 * Spoiled by: instructions that are fused or removed while decoding (none of these are), loop branches (one in 48).
 * Proof: the rate is above what multiply-adds, or loads, reach alone; no mix waits for a result (independent chains).
 */
#include "fma.h"

#define MIX(name, fmas, loads, adds)                                                                          \
  KERNEL(name) {                                                                                              \
    floats acc[8], factor = (floats){0} + 0.999f, term = (floats){0} + 1e-3f;                                 \
    long whole[4] = {1, 2, 3, 4}, one = repeat;                                                               \
    PIN(factor);                                                                                              \
    PIN(term);                                                                                                \
    _Pragma("GCC unroll 8") for (int n = 0; n < 8; n++) acc[n] = term;                                        \
    for (long i = 0; i < repeat; i++) {                                                                       \
      _Pragma("GCC unroll 8") for (int n = 0; n < 8; n++) {                                                   \
        if (fmas > n % 2) { acc[n] = acc[n] * factor + term; PIN(acc[n]); }                                   \
        if (loads > n % 2) { floats x = *(volatile floats *)(data + 64 * n); PIN(x); }                        \
        if (adds > n % 2) { INT_ADD(whole[n % 4], one); }                                                     \
        if (adds > 2 + n % 2) { INT_ADD(whole[(n + 2) % 4], one); }                                           \
      }                                                                                                       \
    }                                                                                                         \
    _Pragma("GCC unroll 8") for (int n = 0; n < 8; n++) PIN(acc[n]);                                          \
    (void)bytes;                                                                                              \
  }

/* Eight slots: a kind of 1 is in every other one, of 2 in each, additions of 4 twice in each. */
MIX(issue_221, 2, 2, 1)
MIX(issue_222, 2, 2, 2)
MIX(issue_224, 2, 2, 4)
