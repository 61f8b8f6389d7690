/* Latency of the memory layers, and what fits a cache.
 *
 * Measures: latency_s of l1, l2, l3 and dram: the time from one load to the next load that needs its result as an
 *   address, at random positions in a block that fits in the layer; capacity_bytes of l1 and l2: the size of the
 *   largest block whose latency is closer to the layer's own latency than to the next layer's.
 * Spoiled by: prefetching (the order is random, no distance repeats), TLB misses (large pages where the system has them),
 *   other users of a shared cache.
 * Proof: two chases in one loop take the time of one, so neither ports nor bandwidth are the limit.
 */
#include <stdint.h>
#include "chase.h"

static uint64_t random_next(uint64_t *state) {
  *state = *state * 6364136223846793005ULL + 1442695040888963407ULL;
  return *state >> 33;
}

void chase_link(char *block, long count, long (*place)(long, long), long pitch) {
  /* Sattolo: one cycle through all places; the order is kept in the places themselves. */
  uint64_t state = 88172645463325252ULL;
  for (long n = 0; n < count; n++) *(void **)(block + 64 + place(n, pitch)) = block + 64 + place(n, pitch);
  for (long n = count - 1; n > 0; n--) {
    void **one = (void **)(block + 64 + place(n, pitch));
    void **other = (void **)(block + 64 + place((long)(random_next(&state) % (uint64_t)n), pitch));
    void *kept = *one;
    *one = *other;
    *other = kept;
  }
  ((struct Chase *)block)->at = block + 64 + place(0, pitch);
}

static long every(long n, long pitch) { return n * pitch; }

/* `repeat` is the distance of the places: a ring through the whole block. */
KERNEL(chase_fill) { chase_link(data, (bytes - 64) / repeat, every, repeat); }

/* A ring through pages of 4 KiB in random order, `repeat` places in each, in an order of its own, before the next page
 * comes: a walk of the page table is shared by so many loads. */
KERNEL(chase_fill_pages) {
  uint64_t state = 1442695040888963407ULL;
  long pages = (bytes - 64) / 4096, pitch = 4096 / repeat, turn = 0;
  void **last = &((struct Chase *)data)->at;
  char *first = 0;
  unsigned char order[64];
  for (int n = 0; n < 64; n++) order[n] = (unsigned char)n;
  /* Visit page (a * i + c) mod 2^k, skipping those beyond the block: all pages once, far apart, nothing to keep. */
  uint64_t mask = 1, at = random_next(&state);
  while ((long)mask < pages) mask *= 2;
  for (uint64_t i = 0; i < mask; i++) {
    at = (at * 1664525 + 1013904223) & (mask - 1);
    if ((long)at >= pages) continue;
    turn++;
    for (long n = repeat - 1; n > 0; n--) { /* another order in every page: nothing to learn for a prefetcher */
      long other = (long)(random_next(&state) % (uint64_t)(n + 1));
      unsigned char kept = order[n];
      order[n] = order[other];
      order[other] = kept;
    }
    for (long n = 0; n < repeat; n++) {
      char *place = data + 64 + (long)at * 4096 + order[n] * pitch + (repeat == 1 ? turn % 63 * 64 : 0);
      if (!first) first = place;
      *last = place;
      last = (void **)place;
    }
  }
  *last = first;
}

KERNEL(chase_one) {
  void *p = ((struct Chase *)data)->at;
  for (long i = 0; i < repeat; i++) {
    _Pragma("GCC unroll 16") for (int n = 0; n < 16; n++) p = *(void *volatile *)p;
  }
  ((struct Chase *)data)->at = p;
  (void)bytes;
}

/* Two rings, one in either half of the block. */
KERNEL(chase_fill_two) {
  chase_fill(repeat, data, bytes / 2);
  chase_fill(repeat, data + bytes / 2, bytes / 2);
}

KERNEL(chase_two) {
  struct Chase *one = (struct Chase *)data, *other = (struct Chase *)(data + bytes / 2);
  void *p = one->at, *q = other->at;
  for (long i = 0; i < repeat; i++) {
    _Pragma("GCC unroll 16") for (int n = 0; n < 16; n++) {
      p = *(void *volatile *)p;
      q = *(void *volatile *)q;
    }
  }
  one->at = p;
  other->at = q;
}
