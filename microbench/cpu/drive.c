/* Times windows of a kernel on threads bound to processors: all start together, and the slowest one counts.
 *
 * Windows are far shorter than a scheduler's time slice, so most of them either run undisturbed or are far off.
 * The caller's own affinity is never touched: even one thread runs beside it.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include "probe.h"

typedef void (*Kernel)(long repeat, char *data, long bytes);

double probe_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + 1e-9 * t.tv_nsec;
}

struct Run {
  Kernel kernel;
  long repeat, bytes, step, span;
  int threads, windows, taken;
  double deadline;
  double *seconds;
  atomic_int arrived, round, stop, go;
};

struct Worker {
  struct Run *run;
  int index, processor;
  char *data;
  double start, end;
  struct Worker *all;
};

static void meet(struct Run *r, int *round) {
  int mine = ++*round;
  if (atomic_fetch_add(&r->arrived, 1) + 1 == r->threads) {
    atomic_store(&r->arrived, 0);
    atomic_store(&r->round, mine);
  }
  for (long spins = 0; atomic_load_explicit(&r->round, memory_order_acquire) < mine; spins++)
    if (spins > 20000) sched_yield();
}

static void record(struct Run *r, struct Worker *all, int w) {
  double start = all[0].start, end = all[0].end;
  for (int t = 1; t < r->threads; t++) {
    if (all[t].start < start) start = all[t].start;
    if (all[t].end > end) end = all[t].end;
  }
  r->seconds[w] = end - start;
  r->taken = w + 1;
  if (end > r->deadline || w + 1 == r->windows) atomic_store(&r->stop, 1);
}

static void *work(void *argument) {
  struct Worker *me = argument;
  struct Run *r = me->run;
#if defined(__linux__)
  if (me->processor >= 0) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(me->processor, &set);
    pthread_setaffinity_np(pthread_self(), sizeof set, &set);
  }
#endif
  int round = 0;
  while (!atomic_load(&r->go)) sched_yield();
  for (int w = 0; w <= r->windows && atomic_load(&r->go) > 0; w++) { /* the first one warms up */
    char *data = me->data + (r->span ? (long)w * (me->index + 1) * r->step % r->span : 0);
    meet(r, &round);
    me->start = probe_now();
    r->kernel(r->repeat, data, r->bytes);
    me->end = probe_now();
    meet(r, &round);
    if (w > 0 && me->index == 0) record(r, me->all, w - 1);
    meet(r, &round);
    if (atomic_load(&r->stop)) break;
  }
  return 0;
}

/* Fill `seconds` with up to `windows` windows, stop after `budget_s`; return how many there are, -1 without threads.
 * Window w works on `data[thread] + w * (thread + 1) * step % span`: threads that walk through memory side by side, always as
 * far apart, would meet in the same bank of it again and again, or never. */
EXPORT int probe_drive(Kernel kernel, long repeat, char **data, long bytes, long step, long span, const int *processors,
                       int threads, int windows, double budget_s, double *seconds) {
  struct Run r = {.kernel = kernel, .repeat = repeat, .bytes = bytes, .step = step, .span = span, .threads = threads,
                  .windows = windows, .deadline = probe_now() + budget_s, .seconds = seconds};
  struct Worker *all = calloc(threads, sizeof *all);
  pthread_t *ids = calloc(threads, sizeof *ids);
  int started = 0;
  for (; all && ids && started < threads; started++) {
    all[started] = (struct Worker){.run = &r, .index = started, .processor = processors[started],
                                   .data = data[started], .all = all};
    if (pthread_create(&ids[started], 0, work, &all[started])) break;
  }
  atomic_store(&r.go, started == threads ? 1 : -1);
  for (int t = 0; t < started; t++) pthread_join(ids[t], 0);
  free(all);
  free(ids);
  return started == threads ? r.taken : -1;
}

/* Memory of its own pages: large ones where they are wanted and the system has them. Null where there is none. */
EXPORT char *probe_block(long bytes, int large) {
  const long unit = 2L << 20, whole = (bytes + unit - 1) / unit * unit;
  char *found = mmap(0, whole + unit, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (found == MAP_FAILED) return 0;
  long before = -(intptr_t)found & (unit - 1);
  if (before) munmap(found, before);
  if (unit - before) munmap(found + before + whole, unit - before);
#if defined(MADV_HUGEPAGE)
  madvise(found + before, whole, large ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
#endif
  return found + before;
}

EXPORT void probe_unblock(char *block, long bytes) {
  const long unit = 2L << 20;
  munmap(block, (bytes + unit - 1) / unit * unit);
}

/* First touch, by the thread that will work on it: memory lies near the one who touches it first. */
KERNEL(probe_touch) {
  float *x = (float *)data;
  for (long i = 0; i < bytes / 4; i++) x[i] = 1.0f + (float)(i % 7) * 0.125f;
  (void)repeat;
}
