/* Clock of a core under load.
 *
 * Measures: clock_hz, the cycles per second of a busy core while all cores are busy: 1024 dependent integer additions
 *   take 1024 cycles on every processor, however many instructions it can run in parallel.
 * Spoiled by: additions of constants, which some cores do while renaming (the operand is a register here); a clock
 *   that is still rising (the first window warms up); another process on the core (the fastest windows count).
 * Proof: two independent chains in one loop take the same time as one, so neither issue nor the loop bounds it.
 */
#include "probe.h"

#if defined(__x86_64__)
#define ADD(x) "add %[y], %[" x "]\n"
#else
#define ADD(x) "add %[" x "], %[" x "], %[y]\n"
#endif

KERNEL(clock_one) {
  long a = 1, y = repeat;
  for (long i = 0; i < repeat; i++) __asm__ volatile(".rept 1024\n" ADD("a") ".endr" : [a] "+r"(a) : [y] "r"(y));
  (void)data, (void)bytes;
}

KERNEL(clock_two) {
  long a = 1, b = 2, y = repeat;
  for (long i = 0; i < repeat; i++)
    __asm__ volatile(".rept 1024\n" ADD("a") ADD("b") ".endr" : [a] "+r"(a), [b] "+r"(b) : [y] "r"(y));
  (void)data, (void)bytes;
}

EXPORT const int clock_chain = 1024;
