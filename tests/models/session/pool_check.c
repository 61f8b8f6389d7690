/* Checks of roller/runtime/session/thread_pool.h that Python cannot make; the argument says which. Prints "ok". */
#define _GNU_SOURCE
#include <sched.h>
#include <unistd.h>

/* Where `slow` is set, who is called to one processor stays there for long. */
static _Atomic int slow, alone;

static int set_affinity(pid_t thread, size_t bytes, const cpu_set_t *set) {
  const int failed = sched_setaffinity(thread, bytes, set);
  if (slow && CPU_COUNT(set) == 1) {
    alone = 1;
    usleep(100000);
  }
  return failed;
}

#define sched_setaffinity set_affinity
#include "../../../roller/runtime/session/native_runner.c"
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>

enum { TASKS = 64, CALLS = 2000 };

typedef struct {
  _Atomic int ran[TASKS];
  long plain[TASKS], nested[4]; /* not atomic: that the pool orders tasks and callers is what is checked */
} Work;

static int inner(int n, void *group, void *data) {
  (void)group;
  ((Work *)data)->nested[n]++;
  return 0;
}

static int outer(int n, void *group, void *data) {
  Work *work = data;
  assert(n < ((Group *)group)->tasks);
  work->ran[n]++;
  work->plain[n]++;
  for (volatile int k = 0; k < 200 * (n % 3); ++k) continue;
  return n == 0 && launch(inner, work, 4);
}

static void *call_often(void *seed) {
  unsigned random = (unsigned)(uintptr_t)seed;
  Work *work = calloc(1, sizeof *work);
  for (int k = 0; k < CALLS; ++k) {
    const int tasks = 1 + rand_r(&random) % TASKS;
    for (int n = 0; n < TASKS; ++n) work->ran[n] = 0;
    begin_call(1 + rand_r(&random) % 4);
    assert(launch(outer, work, tasks) == 0);
    end_call();
    for (int n = 0; n < TASKS; ++n) assert(work->ran[n] == (n < tasks));
    if (k % 100 == 0) usleep(500); /* workers fall asleep */
  }
  assert(work->nested[3] == CALLS);
  free(work);
  return 0;
}

static void stress(void) {
  pthread_t threads[4];
  for (uintptr_t n = 0; n < 4; ++n) pthread_create(threads + n, 0, call_often, (void *)(n + 1));
  for (int n = 0; n < 4; ++n) pthread_join(threads[n], 0);
  call_often((void *)9);
}

/* No more threads than a launch may use are ever in it, though there are more workers. */
static _Atomic int inside, most_inside;

static int count_inside(int n, void *group, void *data) {
  (void)n, (void)group, (void)data;
  const int now = ++inside;
  for (int most = most_inside; most < now && !atomic_compare_exchange_weak(&most_inside, &most, now);) continue;
  usleep(100);
  inside--;
  return 0;
}

static void limit(void) {
  use_threads(8);
  launch(count_inside, 0, 32); /* eight threads there are */
  for (int n = 0; n < 50; ++n) {
    use_threads(2);
    most_inside = 0;
    launch(count_inside, 0, 12);
    assert(most_inside <= 2);
  }
}


static _Atomic int stop, worker_moved;

static void *hog(void *processor) {
  const cpu_set_t set = only((int)(intptr_t)processor);
  pthread_setaffinity_np(pthread_self(), sizeof set, &set);
  while (!stop) relax();
  return 0;
}

/* The second task works until its thread is on another processor; the first one's thread waits for it. */
static int wait_to_be_moved(int n, void *group, void *data) {
  (void)group;
  static _Atomic int both;
  both++;
  while (both < 2) relax(); /* one each */
  if (pthread_equal(pthread_self(), *(pthread_t *)data)) return 0;
  const int began = sched_getcpu();
  pthread_t other;
  pthread_create(&other, 0, hog, (void *)(intptr_t)began);
  for (const int64_t until = now_ns() + 20000000000; sched_getcpu() == began && now_ns() < until;) relax();
  worker_moved = sched_getcpu() != began;
  stop = 1;
  pthread_join(other, 0);
  return n < 0;
}

/* A worker that lost its processor within a task comes to that of the caller who waits for it. */
static void rescued(void) {
  pthread_t me = pthread_self();
  begin_call(2);
  assert(launch(wait_to_be_moved, &me, 2) == 0);
  end_call();
  assert(worker_moved);
}

static _Atomic int caller_id;
static cpu_set_t caller_before, caller_after;

static void *blocked_caller(void *unused) {
  (void)unused;
  begin_call(2);
  sched_getaffinity(0, sizeof caller_before, &caller_before);
  caller_id = thread_id;
  while (!stop) usleep(1000);
  sched_getaffinity(0, sizeof caller_after, &caller_after);
  end_call();
  return 0;
}

/* A caller whose clock stands still is called to the worker's processor, and keeps all that it was allowed. */
static void beckoned(void) {
  pthread_t caller;
  pthread_create(&caller, 0, blocked_caller, 0);
  while (!caller_id) usleep(1000);
  usleep(20000);
  int64_t seen = 0;
  int whose = 0, called = 0;
  assert(!beckon(&seen, &whose)); /* one look tells nothing */
  for (int n = 0; n < 100 && !called; ++n) called = beckon(&seen, &whose);
  assert(called);
  stop = 1;
  pthread_join(caller, 0);
  assert(CPU_EQUAL(&caller_before, &caller_after));
  assert(only_caller == 0 && !beckon(&seen, &whose) && !beckon(&seen, &whose)); /* no call, nobody to call */
}

/* Of two callers one is rescued: nobody stays on its processor. */
static void freed(void) {
  pthread_t me = pthread_self();
  cpu_set_t all, set;
  sched_getaffinity(0, sizeof all, &all);
  begin_call(2);
  begin_call(2);
  assert(launch(wait_to_be_moved, &me, 2) == 0);
  assert(worker_moved);
  pthread_getaffinity_np(crew[0].thread, sizeof set, &set);
  assert(CPU_EQUAL(&set, &all));
}

static void *ending_caller(void *unused) {
  (void)unused;
  begin_call(2);
  sched_getaffinity(0, sizeof caller_before, &caller_before);
  caller_id = thread_id;
  while (!alone) usleep(1000);
  end_call();
  sched_getaffinity(0, sizeof caller_after, &caller_after);
  return 0;
}

/* A call that ends while its caller is called elsewhere ends with all the processors it had. */
static void ended(void) {
  pthread_t caller;
  pthread_create(&caller, 0, ending_caller, 0);
  while (!caller_id) usleep(1000);
  usleep(20000);
  int64_t seen = 0;
  int whose = 0, called = 0;
  slow = 1;
  for (int n = 0; n < 1000 && !called; ++n) called = beckon(&seen, &whose);
  assert(called);
  pthread_join(caller, 0);
  assert(CPU_EQUAL(&caller_before, &caller_after));
}

static int nothing(int n, void *group, void *data) { return n < 0 && group == data; }

/* Threads of a forked process stay on the processors that it was given. */
static void forked(void) {
  begin_call(2);
  launch(nothing, 0, 4);
  end_call();
  const pid_t child = fork();
  if (!child) {
    const cpu_set_t mine = only(sched_getcpu());
    cpu_set_t set;
    if (sched_setaffinity(0, sizeof mine, &mine)) _exit(1);
    begin_call(2);
    launch(nothing, 0, 4);
    end_call();
    _exit(workers != 1 || pthread_getaffinity_np(crew[0].thread, sizeof set, &set) || !CPU_EQUAL(&set, &mine));
  }
  int status = -1;
  assert(waitpid(child, &status, 0) == child && status == 0);
}

static _Atomic int held_tasks;

static int hold(int n, void *group, void *data) {
  (void)group, (void)data;
  held_tasks++;
  while (!stop) usleep(100);
  return n < 0;
}

static void *holding_caller(void *unused) {
  (void)unused;
  begin_call(2);
  launch(hold, 0, 16);
  end_call();
  return 0;
}

/* A process that is forked while another thread's launch is under way has none of its tasks, and runs its own. */
static void forgotten(void) {
  pthread_t caller;
  pthread_create(&caller, 0, holding_caller, 0);
  while (!held_tasks) usleep(1000);
  const pid_t child = fork();
  if (!child) {
    for (int n = 0; n < SLOTS; ++n)
      for (int lane = 0; lane < LANES; ++lane) {
        const uint64_t range = look(&slots[n].lane[lane]);
        if (next_of(range) < end_of(range)) _exit(1);
      }
    begin_call(2);
    for (int n = 0; n < 1000; ++n)
      if (launch(nothing, 0, 4)) _exit(2);
    end_call();
    _exit(0);
  }
  int status = -1;
  const int ended = waitpid(child, &status, 0) == child;
  stop = 1;
  pthread_join(caller, 0);
  assert(ended && status == 0);
}

/* Whether the system moves a thread where it is told to: some sandboxes only say so. */
static int obeys(const cpu_set_t *set) {
  for (int n = 0; n < CPU_SETSIZE; ++n) {
    const cpu_set_t one = only(n);
    if (CPU_ISSET(n, set) && (sched_setaffinity(0, sizeof one, &one) || sched_getcpu() != n)) return 0;
  }
  return !sched_setaffinity(0, sizeof *set, set);
}

int main(int count, char **arguments) {
  assert(count == 2);
  cpu_set_t all, two;
  sched_getaffinity(0, sizeof all, &all);
  CPU_ZERO(&two);
  for (int n = 0, found = 0; n < CPU_SETSIZE && found < 2; ++n)
    if (CPU_ISSET(n, &all)) CPU_SET(n, &two), ++found;
  if (!strcmp(arguments[1], "stress")) stress();
  if (!strcmp(arguments[1], "limit")) limit();
  const int pair = CPU_COUNT(&two) == 2 && obeys(&two);
  if (!strcmp(arguments[1], "rescued") && pair) rescued();
  if (!strcmp(arguments[1], "beckoned") && pair) beckoned();
  if (!strcmp(arguments[1], "freed") && pair) freed();
  if (!strcmp(arguments[1], "ended") && pair) ended();
  if (!strcmp(arguments[1], "forked") && pair) forked();
  if (!strcmp(arguments[1], "forgotten")) forgotten();
  puts("ok");
  return 0;
}
