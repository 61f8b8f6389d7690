/* Threads that share the tasks of a parallel launch with its caller.
 *
 * TVM's own pool gives every task to one thread and waits for all of them: where another program has that thread's
 * processor, everybody waits for it. Here whoever is free takes the next task, the caller too, so that nobody waits for
 * a thread that has not begun. Launches of several callers stand side by side in slots; one inside a task runs in place.
 * Threads are started when they are first needed, are never joined, and are started anew in a forked process.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <time.h>
#include <unistd.h>

typedef int (*Task)(int task, void *group, void *data);

/* The first two members of TVM's environment of a parallel launch. */
typedef struct {
  void *handle;
  int32_t tasks;
} Group;

enum { SLOTS = 32, MOST_WORKERS = 255, SPIN_NS = 300000 };

/* `ticket` is generation << 32 | next task << 16 | tasks: one who takes a task by exchanging it knows that the rest of the
 * slot belongs to that task, because the caller does not leave before all tasks are done. */
typedef struct {
  _Atomic uint64_t ticket;
  Task task;
  void *data;
  _Atomic int left, failed, taken;
} __attribute__((aligned(64))) Slot;

static Slot slots[SLOTS];
static pthread_mutex_t pool_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t pool_wake = PTHREAD_COND_INITIALIZER;
static _Atomic int sleepers, workers, callers;
static pthread_t threads[MOST_WORKERS];
/* Threads that a launch of this thread may use, and whether it is inside a task. */
static __thread int allowed, inside_task;
#ifdef __linux__
static cpu_set_t processors;
static _Atomic int apart_from = -1;
#endif

static void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ __volatile__("yield");
#endif
}

static int64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Run one task of a slot; 0 where none was left to take. */
static int take_task(Slot *slot) {
  uint64_t ticket = slot->ticket;
  for (;;) {
    const int next = (int)(ticket >> 16 & 0xFFFF), tasks = (int)(ticket & 0xFFFF);
    if (next >= tasks) return 0;
    if (atomic_compare_exchange_weak(&slot->ticket, &ticket, ticket + (1 << 16))) {
      Group group = {0, tasks};
      inside_task = 1;
      if (slot->task(next, &group, slot->data)) slot->failed = 1;
      inside_task = 0;
      slot->left--;
      return 1;
    }
  }
}

static int take_any(void) {
  for (int n = 0; n < SLOTS; ++n)
    if (take_task(&slots[n])) return 1;
  return 0;
}

static void *work(void *unused) {
  (void)unused;
  for (;;) {
    int64_t until = now_ns() + SPIN_NS;
    for (int n = 1; n % 64 || now_ns() < until; ++n) {
      if (take_any()) until = now_ns() + SPIN_NS;
      relax();
    }
    pthread_mutex_lock(&pool_lock);
    /* In this order, and the other way round in launch(): one of the two sees the other. */
    sleepers++;
    int found = 0;
    for (int n = 0; n < SLOTS && !found; ++n) {
      const uint64_t ticket = slots[n].ticket;
      found = (ticket >> 16 & 0xFFFF) < (ticket & 0xFFFF);
    }
    if (!found) pthread_cond_wait(&pool_wake, &pool_lock);
    sleepers--;
    pthread_mutex_unlock(&pool_lock);
  }
  return 0;
}

/* A forked process has the memory of its threads and none of them. */
static void forget(void) {
  pthread_mutex_init(&pool_lock, 0);
  pthread_cond_init(&pool_wake, 0);
  sleepers = workers = callers = 0;
  for (int n = 0; n < SLOTS; ++n) slots[n].ticket = slots[n].taken = 0;
#ifdef __linux__
  apart_from = -1;
#endif
}

static void start_workers(int wanted) {
  static int registered;
  if (workers >= wanted) return;
  pthread_mutex_lock(&pool_lock);
  if (!registered) {
    registered = 1;
    pthread_atfork(0, 0, forget);
#ifdef __linux__
    sched_getaffinity(0, sizeof processors, &processors);
#endif
  }
  sigset_t all, before; /* signals are for the threads of the program */
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  while (workers < wanted && workers < MOST_WORKERS) {
    if (pthread_create(&threads[workers], 0, work, 0)) break; /* the caller does the work alone */
    pthread_detach(threads[workers]);
    workers++;
#ifdef __linux__
    apart_from = -1;
#endif
  }
  pthread_sigmask(SIG_SETMASK, &before, 0);
  pthread_mutex_unlock(&pool_lock);
}

/* Keep the workers off the processor the caller runs on: some schedulers wake them there and leave them for long. */
static void part(void) {
#ifdef __linux__
  const int here = sched_getcpu();
  if (here == apart_from || here < 0) return;
  cpu_set_t rest = processors;
  CPU_CLR(here, &rest);
  if (CPU_COUNT(&rest) == 0) return;
  for (int n = 0; n < workers; ++n) pthread_setaffinity_np(threads[n], sizeof rest, &rest);
  apart_from = here;
#endif
}

/* What kernels call in place of TVMBackendParallelLaunch. */
static int launch(Task task, void *data, int tasks) {
  const int most = allowed > 0 ? allowed : workers + 1;
  if (tasks <= 0) tasks = most;
  Slot *slot = 0;
  for (int n = 0; n < SLOTS && !inside_task && tasks > 1 && most > 1 && tasks < 0xFFFF && !slot; ++n) {
    int none = 0;
    if (atomic_compare_exchange_strong(&slots[n].taken, &none, 1)) slot = &slots[n];
  }
  if (!slot) {
    Group group = {0, tasks};
    int failed = 0;
    for (int n = 0; n < tasks; ++n) failed |= task(n, &group, data);
    return failed ? -1 : 0;
  }
  slot->task = task;
  slot->data = data;
  slot->left = tasks;
  slot->failed = 0;
  slot->ticket = ((slot->ticket >> 32) + 1) << 32 | (uint64_t)tasks;
  if (sleepers) {
    pthread_mutex_lock(&pool_lock);
    pthread_cond_broadcast(&pool_wake);
    pthread_mutex_unlock(&pool_lock);
  }
  while (take_task(slot)) continue;
  for (int n = 1; slot->left; ++n) {
    relax();
    if (n % 4096 == 0) sched_yield(); /* somebody else may have the processor of who has the last task */
  }
  const int failed = slot->failed;
  slot->taken = 0;
  return failed ? -1 : 0;
}

/* Let launches of this thread use so many threads, itself among them. */
static void use_threads(int count) {
  allowed = count;
  if (count > 1) {
    start_workers(count - 1);
    if (callers < 2) part();
  }
}
