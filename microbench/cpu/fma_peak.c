/* Peak rate of fused multiply-adds.
 *
 * Measures: compute.ops_per_cycle_per_unit.fma and .fma.float64: multiply-adds per cycle and core, counted by lane, on
 *   all cores at once, at the vector width of the code generator (for information, also at narrower ones), with
 *   operands in registers only.
 * Spoiled by: too few independent chains (more than latency times ports of any core), a compiler that merges or
 *   vectorises (every result is pinned), clocks that fall under wide vectors (then the rate falls, against clock_hz).
 * Proof: half the accumulators reach the same rate, so no latency is waited for; there is no memory access at all.
 */
#include "fma.h"

FMA_CHAINS(fma_float32, floats, float, MANY)
FMA_CHAINS(fma_float64, doubles, double, MANY)
FMA_CHAINS(fma_float32_half, floats, float, MANY / 2 + MANY / 6)
#if VECTOR_BYTES > 16
typedef VECTOR(float, 16) floats16;
FMA_CHAINS(fma_float32_16, floats16, float, MANY)
#endif
#if VECTOR_BYTES > 32
typedef VECTOR(float, 32) floats32;
FMA_CHAINS(fma_float32_32, floats32, float, MANY)
#endif
EXPORT const int fma_chains = MANY, fma_half_chains = MANY / 2 + MANY / 6, vector_bytes = VECTOR_BYTES;
