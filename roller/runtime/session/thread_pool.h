/* Threads that share the tasks of a parallel launch with its caller.
 *
 * A long launch is cut into more tasks than threads (see cut() in native_frame.py). Every lane (the caller and its
 * helpers) has its own range of tasks, the same from call to call, so that data it reads again is in its core's caches;
 * a lane that has finished its range takes the last task of another one. Thus nobody waits for a thread that has not
 * started, only for one that lost its processor within a task: see rescue() and beckon().
 *
 * Launches of several callers occupy separate slots; a launch inside a task runs in place. Threads are started when
 * they are first needed, are never joined, and are started again in a forked process.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <time.h>
#include <unistd.h>
#ifdef __linux__
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#endif

typedef int (*Task)(int task, void *group, void *data);

/* The first two members of TVM's environment of a parallel launch. */
typedef struct {
  void *handle;
  int32_t tasks;
} Group;

enum {
  SLOTS = 32,
  LANES = 64,
  MOST_WORKERS = 255,
  MOST_TASKS = 0xFFFF,
  SPIN_NS = 300000,    /* a worker without work polls for this long before it sleeps */
  PATIENCE_NS = 100000, /* a waiting thread polls for this long before it checks whether the other one is running */
  GLANCE_NS = 10000,   /* time between two readings of a thread's clock */
  STILL_NS = 1000,     /* a clock that advanced by less stands still: the thread has no processor */
  NAP_NS = 3000000     /* a sleeper wakes up after this time in any case */
};

/* The tasks of a lane: generation << 33 | claimed << 32 | end << 16 | next. The lane's other fields belong to a task
 * that a thread takes by exchanging the range, because the caller does not return before all tasks are done. */
typedef struct {
  _Atomic uint64_t range;
  Task task;
  void *data;
  int tasks;
} __attribute__((aligned(64))) Lane;

typedef struct {
  _Atomic int taken, lanes;
  uint64_t generation;
  _Atomic int left __attribute__((aligned(64)));
  _Atomic int failed, asleep;
  Lane lane[LANES];
} __attribute__((aligned(64))) Slot;

typedef struct {
  _Atomic(Slot *) at; /* the slot whose tasks it runs, or 0 */
  pthread_t thread;
  int number;
} __attribute__((aligned(64))) Worker;

static Slot slots[SLOTS];
static Worker crew[MOST_WORKERS];
static pthread_mutex_t pool_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t pool_wake = PTHREAD_COND_INITIALIZER;
static _Atomic int slots_used, sleepers, workers, callers;
/* Number of threads that a launch by this thread may use, and whether this thread is inside a task. */
static __thread int allowed, inside_task;
/* Numbers of tasks into which the next launches by this thread are cut, in order; later ones get as many as threads. */
static __thread const int64_t *cuts;
static __thread int64_t cut_count;
#ifdef __linux__
static cpu_set_t processors;
static _Atomic int apart_from = -1, only_caller, beckoning;
static __thread int thread_id;
#endif

static void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ __volatile__("yield");
#endif
}

static int64_t clock_ns(clockid_t clock) {
  struct timespec t;
  if (clock_gettime(clock, &t)) return -1;
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static int64_t now_ns(void) { return clock_ns(CLOCK_MONOTONIC); }

static uint64_t look(Lane *lane) { return atomic_load_explicit(&lane->range, memory_order_acquire); }
static int next_of(uint64_t range) { return (int)(range & 0xFFFF); }
static int end_of(uint64_t range) { return (int)(range >> 16 & 0xFFFF); }

/* Take the first task of the own lane or the last one of another lane; return -1 if there is none. */
static int take(Lane *lane, int own) {
  uint64_t range = look(lane);
  while (next_of(range) < end_of(range))
    if (atomic_compare_exchange_weak(&lane->range, &range, own ? range + 1 : range - (1 << 16)))
      return own ? next_of(range) : end_of(range) - 1;
  return -1;
}

static int has_tasks(Slot *slot) {
  for (int n = 0, lanes = slot->lanes; n < lanes; ++n) {
    const uint64_t range = look(&slot->lane[n]);
    if (next_of(range) < end_of(range)) return 1;
  }
  return 0;
}

#ifdef __linux__
static void sleep_while(_Atomic int *at, int value) {
  const struct timespec most = {0, NAP_NS};
  syscall(SYS_futex, at, FUTEX_WAIT_PRIVATE, value, &most, 0, 0);
}

static void wake(_Atomic int *at) { syscall(SYS_futex, at, FUTEX_WAKE_PRIVATE, INT_MAX, 0, 0, 0); }

static cpu_set_t only(int processor) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(processor, &set);
  return set;
}
#endif

/* Run tasks of a slot until none is left to take; return whether its caller was asleep, waiting for these. */
static int run_tasks(Slot *slot, int mine) {
  int done = 0;
  inside_task = 1;
  for (int k = 0, lanes = slot->lanes; k < lanes; ++k) {
    Lane *lane = &slot->lane[(mine + k) % lanes];
    for (int n; (n = take(lane, k == 0)) >= 0; ++done) {
      Group group = {0, lane->tasks};
      if (lane->task(n, &group, lane->data)) slot->failed = 1;
    }
  }
  inside_task = 0;
  if (!done || atomic_fetch_sub(&slot->left, done) != done || !slot->asleep) return 0;
#ifdef __linux__
  wake(&slot->left);
#endif
  return 1;
}

/* Claim a lane, preferably the worker's own; return -1 if none is free or no task is left. */
static int claim(Slot *slot, int number) {
  for (int k = 0, lanes = slot->lanes; k < lanes; ++k) {
    const int n = (number + 1 + k) % lanes;
    uint64_t range = look(&slot->lane[n]);
    if (range >> 32 & 1 || (next_of(range) >= end_of(range) && !has_tasks(slot))) continue;
    if (!atomic_compare_exchange_strong(&slot->lane[n].range, &range, range | (uint64_t)1 << 32)) continue;
    return n < slot->lanes ? n : -1; /* the next launch may have fewer lanes */
  }
  return -1;
}

/* Help a launch; return 0 if none needs help, and -1 if its caller was asleep and may need this processor. */
static int help(Worker *me) {
  for (int n = 0, used = slots_used; n < used; ++n) {
    const int lane = claim(&slots[n], me->number);
    if (lane < 0) continue;
    me->at = &slots[n];
    const int slept = run_tasks(&slots[n], lane);
    me->at = 0;
    return slept ? -1 : 1;
  }
  return 0;
}

/* Called by a worker without work: if the only caller of the process lost its processor, move it to this one. */
static int beckon(int64_t *seen, int *whose) {
#ifdef __linux__
  const int caller = only_caller, here = sched_getcpu();
  /* The clock id by which Linux names a thread's processor time. */
  const int64_t clock = caller ? clock_ns((clockid_t)(~(unsigned)caller << 3 | 6)) : -1;
  const int stands = clock >= 0 && here >= 0 && *whose == caller && clock - *seen < STILL_NS;
  *seen = clock, *whose = caller;
  if (!stands) return 0;
  /* The caller's own set of processors is restored at once, but it now waits for this processor. The call does not end
   * in between: see end_call(). */
  cpu_set_t its, mine = only(here);
  beckoning++;
  const int found = only_caller == caller && !sched_getaffinity(caller, sizeof its, &its);
  const int there = found && CPU_ISSET(here, &its) && CPU_COUNT(&its) > 1;
  const int moved = there && !sched_setaffinity(caller, sizeof mine, &mine);
  if (moved) sched_setaffinity(caller, sizeof its, &its);
  beckoning--;
  return moved;
#else
  (void)seen, (void)whose;
  return 0;
#endif
}

static void rest(void) {
  pthread_mutex_lock(&pool_lock);
  /* publish() does this in the reverse order, so that one of the two sees the other's write. */
  sleepers++;
  int found = 0;
  for (int n = 0; n < slots_used && !found; ++n) found = has_tasks(&slots[n]);
  if (!found) pthread_cond_wait(&pool_wake, &pool_lock);
  sleepers--;
  pthread_mutex_unlock(&pool_lock);
}

static void *work(void *self) {
  for (;;) {
    int64_t now = now_ns(), until = now + SPIN_NS, ask = now + PATIENCE_NS, seen = 0;
    for (int n = 1, whose = 0; now < until; ++n) {
      const int helped = help(self);
      if (helped < 0) break;
      if (helped || n % 64 == 0) now = now_ns();
      if (helped) until = now + SPIN_NS, ask = now + PATIENCE_NS, whose = 0;
      if (now > ask) {
        ask = now + GLANCE_NS;
        if (beckon(&seen, &whose)) break;
      }
      relax();
    }
    rest();
  }
  return 0;
}

/* A forked process has its parent's memory but no workers: launches in progress go on only in the parent. Their tasks
 * must not be found here, where a worker may look at a slot before the next launch has written all of its lanes. */
static void forget(void) {
  pthread_mutex_init(&pool_lock, 0);
  pthread_cond_init(&pool_wake, 0);
  for (int n = 0; n < slots_used; ++n)
    for (int lane = 0; lane < LANES; ++lane) slots[n].lane[lane].range = 0;
  slots_used = sleepers = workers = callers = 0;
  for (int n = 0; n < SLOTS; ++n) slots[n].taken = slots[n].lanes = slots[n].asleep = 0;
  for (int n = 0; n < MOST_WORKERS; ++n) crew[n].at = 0;
#ifdef __linux__
  apart_from = -1;
  only_caller = beckoning = 0;
  thread_id = 0;
#endif
}

static void start_workers(int wanted) {
  static int registered;
  if (workers >= wanted) return;
  pthread_mutex_lock(&pool_lock);
  if (!registered) {
    registered = 1;
    pthread_atfork(0, 0, forget);
  }
#ifdef __linux__
  /* A forked process may have been assigned other processors. */
  if (!workers && sched_getaffinity(0, sizeof processors, &processors)) CPU_ZERO(&processors);
#endif
  sigset_t all, before; /* signals go to the program's own threads */
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  while (workers < wanted && workers < MOST_WORKERS) {
    Worker *next = &crew[workers];
    next->number = workers;
    if (pthread_create(&next->thread, 0, work, next)) break; /* the caller does the work alone */
    pthread_detach(next->thread);
    workers++;
#ifdef __linux__
    apart_from = -1;
#endif
  }
  pthread_sigmask(SIG_SETMASK, &before, 0);
  pthread_mutex_unlock(&pool_lock);
}

/* Keep the workers off the caller's processor: schedulers wake them there and leave them there for long, or move the
 * caller to a worker's processor in the middle of a call. */
static void part(void) {
#ifdef __linux__
  const int here = sched_getcpu();
  if (here == apart_from || here < 0) return;
  cpu_set_t others = processors;
  CPU_CLR(here, &others);
  if (CPU_COUNT(&others) == 0) return;
  for (int n = 0; n < workers; ++n) pthread_setaffinity_np(crew[n].thread, sizeof others, &others);
  apart_from = here;
#endif
}

/* Called by a caller that has waited for long: move workers that lost their processor within one of its tasks to this
 * processor, and sleep so that they can run. Another program's time slice takes milliseconds, a task microseconds. */
static void rescue(Slot *slot) {
#ifdef __linux__
  int64_t before[MOST_WORKERS];
  const int here = sched_getcpu(), count = workers;
  clockid_t clock;
  for (int n = 0; n < count; ++n)
    before[n] = crew[n].at == slot && !pthread_getcpuclockid(crew[n].thread, &clock) ? clock_ns(clock) : -1;
  for (const int64_t until = now_ns() + GLANCE_NS; slot->left && now_ns() < until;) relax();
  const cpu_set_t mine = only(here < 0 ? 0 : here);
  int moved = 0, came[MOST_WORKERS] = {0};
  for (int n = 0; n < count && here >= 0; ++n) {
    if (before[n] < 0 || crew[n].at != slot || pthread_getcpuclockid(crew[n].thread, &clock)) continue;
    if (clock_ns(clock) - before[n] >= STILL_NS) continue;
    moved |= came[n] = !pthread_setaffinity_np(crew[n].thread, sizeof mine, &mine);
  }
  if (!moved) return;
  apart_from = -1;
  slot->asleep = 1;
  const int left = slot->left;
  if (left) sleep_while(&slot->left, left);
  slot->asleep = 0;
  if (callers < 2) part();
  for (int n = 0; n < count; ++n) /* with several callers, no worker avoids their processors */
    if (came[n] && apart_from < 0) pthread_setaffinity_np(crew[n].thread, sizeof processors, &processors);
#else
  (void)slot;
  sched_yield();
#endif
}

static void wait_for_others(Slot *slot) {
  int64_t until = 0;
  for (int n = 1; slot->left; ++n) {
    relax();
    if (n % 64) continue;
    const int64_t now = now_ns();
    if (until && now >= until) rescue(slot), until = 0;
    else if (!until) until = now + PATIENCE_NS;
  }
}

static Slot *free_slot(void) {
  for (int n = 0; n < SLOTS; ++n) {
    int none = 0;
    if (!atomic_compare_exchange_strong(&slots[n].taken, &none, 1)) continue;
    for (int used = slots_used; used <= n;)
      if (atomic_compare_exchange_weak(&slots_used, &used, n + 1)) break;
    return &slots[n];
  }
  return 0;
}

static void publish(Slot *slot, Task task, void *data, int tasks, int lanes) {
  slot->left = tasks;
  slot->failed = 0;
  if (slot->lanes != lanes) slot->lanes = lanes; /* written only if it changes, because all workers read it */
  const uint64_t generation = ++slot->generation << 33;
  for (int n = lanes - 1; n >= 0; --n) {
    Lane *lane = &slot->lane[n];
    lane->task = task, lane->data = data, lane->tasks = tasks;
    const uint64_t next = (uint64_t)tasks * n / lanes, end = (uint64_t)tasks * (n + 1) / lanes, mine = n == 0;
    atomic_store_explicit(&lane->range, generation | mine << 32 | end << 16 | next, memory_order_release);
  }
  atomic_thread_fence(memory_order_seq_cst);
  if (!sleepers) return;
  pthread_mutex_lock(&pool_lock);
  for (int n = 1; n < lanes; ++n) pthread_cond_signal(&pool_wake);
  pthread_mutex_unlock(&pool_lock);
}

/* The function that kernels call instead of TVMBackendParallelLaunch. */
static int launch(Task task, void *data, int tasks) {
  const int most = allowed > 0 ? allowed : workers + 1;
  if (tasks <= 0) tasks = cut_count-- > 0 ? (int)*cuts++ : most;
  Slot *slot = inside_task || tasks < 2 || most < 2 || tasks > MOST_TASKS ? 0 : free_slot();
  if (!slot) {
    Group group = {0, tasks};
    int failed = 0;
    for (int n = 0; n < tasks; ++n) failed |= task(n, &group, data);
    return failed ? -1 : 0;
  }
  if (callers < 2) part();
  publish(slot, task, data, tasks, most < LANES ? most : LANES);
  run_tasks(slot, 0);
  wait_for_others(slot);
  const int failed = slot->failed;
  slot->taken = 0;
  return failed ? -1 : 0;
}

/* Make launches by this thread use `count` threads, including itself. */
static void use_threads(int count) {
  allowed = count;
  if (count > 1) start_workers(count - 1);
}

/* Begin or end a call of a model; while it is the only one, workers know whose processor to look after. */
static void begin_call(int threads) {
  use_threads(threads);
#ifdef __linux__
  if (!thread_id) thread_id = (int)syscall(SYS_gettid);
  only_caller = ++callers == 1 && threads > 1 ? thread_id : 0;
#else
  callers++;
#endif
}

static void end_call(void) {
  cut_count = 0; /* the cuts belong to the call */
#ifdef __linux__
  /* A worker that is moving this thread to its processor must finish first, so that this thread, and threads that it
   * starts, may then use all of its own processors. */
  only_caller = 0;
  while (beckoning) usleep(20);
#endif
  callers--;
}
