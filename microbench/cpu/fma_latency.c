/* Latency of a dependent multiply-add.
 *
 * Measures: execution.step_latency_s, the time from one step of an accumulator to the next, with a chain of vector
 *   multiply-adds, each of which waits for the one before.
 * Spoiled by: a multiply-add split into two instructions (then twice the cycles; compiled with contraction on).
 * Proof: two chains take the time of one, so the ports are idle most of the time and latency alone bounds it.
 */
#include "fma.h"

FMA_CHAINS(fma_one, floats, float, 1)
FMA_CHAINS(fma_two, floats, float, 2)
