/* Pointer chases: rings of addresses, each read from the place before. The block's first line keeps the position, so that a
 * window goes on where the one before stopped. */
#ifndef CHASE_H
#define CHASE_H
#include "probe.h"

struct Chase {
  void *at;
};

/* Link `count` places `place(n)` to a ring in random order; returns nothing, the position is its first place. */
void chase_link(char *block, long count, long (*place)(long n, long pitch), long pitch);

#endif
