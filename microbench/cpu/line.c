/* Bytes of a cache line.
 *
 * Measures: line_bytes of the caches: a pointer chase through blocks of 512 bytes beyond L2 reads two words of each
 *   block, a given distance apart. The second word is in L1 if it lies in the line of the first word.
 * Spoiled by: prefetchers that bring the neighbouring line (into L2: that latency is seen all the same).
 * Proof: at 8 bytes the second word costs the latency of L1; the first distance that costs more is the line.
 */
#include <string.h>
#include "chase.h"

void chase_fill(long repeat, char *data, long bytes);

/* A ring of places `repeat` bytes apart; the words between are zero. */
KERNEL(line_fill) {
  memset(data, 0, bytes);
  chase_fill(repeat, data, bytes);
}

/* `bytes` is the distance of the second word. */
KERNEL(line_pair) {
  char *p = ((struct Chase *)data)->at;
  for (long i = 0; i < repeat; i++) {
    _Pragma("GCC unroll 8") for (int n = 0; n < 8; n++) {
      p = *(void *volatile *)p;
      p += *(volatile long *)(p + bytes);
    }
  }
  ((struct Chase *)data)->at = p;
}
