// Runs the threads of a block as fibers, one at a time, in a chosen order between barriers.
#include "runtime.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace emul {
namespace {

const int64_t STACK_BYTES = 256 << 10;
const int64_t ARENA_BYTES = 1 << 20;   // scratchpad of a block, all arrays and the gaps between them
const int64_t ARENA_START = 1024;      // no array begins at shared address 0
const int64_t GAP_BYTES = 256;
const int64_t NEAR_BYTES = 1 << 20;  // a stray address this close to an array is reported as beyond it
const int64_t GRANULE_BYTES = 16;  // of the scratchpad, as copies and matrix operands are aligned
const int MAX_ARRAYS = 64;
const double LATE_S = 0.25;            // beyond its limit a worker is not waited for
const int POISON = 0xff;               // NaN as float and half, -1 as integer

enum State { READY, AT_BARRIER, AT_ACTIVE_MASK, AT_COLLECTIVE, WAITING, DONE };

struct Copy {
  char* target;
  const char* source;
  int64_t bytes, source_bytes;
  int group;
};

struct Bulk {  // a copy that a barrier object counts
  char* target;
  const char* source;
  int64_t bytes;
  uint64_t* barrier;
};

struct Fiber {
  jmp_buf at;
  ucontext_t start;
  bool started = false;
  State state = READY;
  Index3 index = {0, 0, 0};
  int line = 0;
  unsigned mask = 0;  // of the collective it waits in, or of the lanes active with it
  int kind = 0;
  void* mine = nullptr;
  Collective run = nullptr;
  std::vector<Copy> copies;
  int group = 0;
  bool (*ready)(const void*, unsigned) = nullptr;  // what it waits for
  const void* what = nullptr;
  unsigned value = 0;
  std::vector<uint32_t> unpublished;  // granules of the scratchpad its copies wrote since its last proxy fence
};

struct Warp {
  unsigned alive = 0, posted = 0;
};

struct Random {
  uint64_t state;
  uint64_t next() {
    uint64_t z = (state += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }
  template <class T>
  void shuffle(std::vector<T>& v) {
    for (size_t i = v.size(); i > 1; --i) std::swap(v[i - 1], v[next() % i]);
  }
};

struct Worker;

struct Shared {  // what the workers of one launch share
  Launch& launch;
  Body body;
  std::vector<uint32_t> blocks;
  std::atomic<size_t> next{0};
  std::atomic<bool> failed{false}, late{false};
  std::mutex report, watch;
  std::condition_variable ended;
  bool over = false;
  std::vector<std::pair<pthread_t, Worker*>> watched;
};

struct Worker {
  Shared* shared;
  Launch* launch;
  double began_s = 0, look_s = 0;  // of this thread's processor time; when to look at it next, on the monotonic clock
  std::vector<Fiber> fibers;
  std::vector<Warp> warps;
  std::vector<int> order;
  std::vector<char*> stacks;
  Random random;
  volatile sig_atomic_t in_kernel = 0;  // its own text runs, between two turns
  Index3 block;
  int current = 0, alive = 0, exited_early = 0;
  char* arena = nullptr;
  int64_t arena_used = 0;
  Region arrays[MAX_ARRAYS] = {};
  Region dynamic = {};
  std::vector<uint16_t> writers;  // per granule: thread + 1 whose copy no proxy fence has followed
  uint64_t serial = 0;
  std::vector<Bulk> bulk;
  jmp_buf scheduler, abandoned;
  ucontext_t scheduler_context;
};

thread_local Worker* W = nullptr;
std::atomic<uint64_t> serials{0};

void perform(const Copy& c) {
  memcpy(c.target, c.source, (size_t)c.source_bytes);
  memset(c.target + c.source_bytes, 0, (size_t)(c.bytes - c.source_bytes));
  Worker& w = *W;
  if (w.writers.empty()) w.writers.resize(ARENA_BYTES / GRANULE_BYTES);
  uint32_t granule = (uint32_t)((c.target - w.arena) / GRANULE_BYTES);
  if (granule >= w.writers.size() || w.writers[granule] == w.current + 1) return;
  w.writers[granule] = (uint16_t)(w.current + 1);
  w.fibers[w.current].unpublished.push_back(granule);
}

void switch_out() {
  if (_setjmp(W->fibers[W->current].at) == 0) _longjmp(W->scheduler, 1);
}

void complete(Warp& warp, int first, unsigned members);

// Completes every collective of a warp whose lanes have all arrived (an exit can be what it waited for).
void settle(Worker& w, int warp_index) {
  Warp& warp = w.warps[warp_index];
  for (int lane = 0; lane < 32; ++lane) {
    if (!(warp.posted >> lane & 1)) continue;
    unsigned members = w.fibers[warp_index * 32 + lane].mask & warp.alive;
    if ((warp.posted & members) == members) complete(warp, warp_index * 32, members);
  }
}

void complete(Warp& warp, int first, unsigned members) {
  Worker& w = *W;
  void* lanes[32] = {};
  const Fiber* some = nullptr;
  for (int lane = 0; lane < 32; ++lane) {
    if (!(members >> lane & 1)) continue;
    Fiber& f = w.fibers[first + lane];
    if (!some) some = &f;
    if (f.kind != some->kind || (f.mask & warp.alive) != members)
      fail("divergence", "lanes of one warp meet in different warp instructions or with different masks (0x%08x, 0x%08x)",
           some->mask, f.mask);
    lanes[lane] = f.mine;
  }
  if (some->run) some->run(lanes, members);
  warp.posted &= ~members;
  for (int lane = 0; lane < 32; ++lane)
    if (members >> lane & 1) w.fibers[first + lane].state = READY;
}

void fiber_main() {
  for (;;) {  // one turn per block: a context is made once and reused
    Worker& w = *W;
    w.shared->body(w.launch->buffer);
    Fiber& f = w.fibers[w.current];
    f.state = DONE;
    f.copies.clear();
    f.unpublished.clear();
    f.group = 0;
    w.alive--;
    Warp& warp = w.warps[w.current / 32];
    warp.alive &= ~(1u << w.current % 32);
    if (warp.posted) settle(w, w.current / 32);
    switch_out();
  }
}

void resume(Worker& w, int i) {
  w.current = i;
  if (_setjmp(w.scheduler) != 0) {
    w.in_kernel = 0;
    return;
  }
  Fiber& f = w.fibers[i];
  w.in_kernel = 1;
  if (f.started) _longjmp(f.at, 1);
  f.started = true;
  setcontext(&f.start);
}

// Lanes that nothing can join any more learn who is active with them: those waiting at the same place.
bool release_active(Worker& w) {
  bool any = false;
  for (size_t first = 0; first < w.fibers.size(); first += 32) {
    size_t end = std::min(first + 32, w.fibers.size());
    for (size_t i = first; i < end; ++i) {
      if (w.fibers[i].state != AT_ACTIVE_MASK) continue;
      unsigned mask = 0;
      int line = w.fibers[i].line;
      for (size_t j = i; j < end; ++j)
        if (w.fibers[j].state == AT_ACTIVE_MASK && w.fibers[j].line == line) mask |= 1u << (j - first);
      for (size_t j = i; j < end; ++j)
        if (mask >> (j - first) & 1) w.fibers[j].mask = mask, w.fibers[j].state = READY;
      any = true;
    }
  }
  return any;
}

void release_barrier(Worker& w) {
  int line = -1;
  for (size_t i = 0; i < w.fibers.size(); ++i) {
    Fiber& f = w.fibers[i];
    w.current = (int)i;
    if (f.state == WAITING)
      fail("deadlock", "waits for a phase of an mbarrier that never completes");
    if (f.state == AT_COLLECTIVE)
      fail("divergence", "waits for lanes 0x%08x of its warp, which never arrive", f.mask & w.warps[i / 32].alive);
    if (f.state == DONE)
      fail("divergence", "has returned while other threads of the block wait at __syncthreads()");
    if (line >= 0 && f.line != line)
      fail("divergence", "waits at __syncthreads() of line %d while others wait at that of line %d", f.line, line);
    line = f.line;
  }
  for (Fiber& f : w.fibers) f.state = READY;
}

// Performs the bulk copies that are on their way.
bool land(Worker& w) {
  std::vector<Bulk> landing;
  landing.swap(w.bulk);
  for (const Bulk& c : landing) {
    memcpy(c.target, c.source, (size_t)c.bytes);
    barrier_complete(c.barrier, 0, c.bytes);
  }
  return !landing.empty();
}

bool can_run(Fiber& f) {
  if (f.state == WAITING && f.ready(f.what, f.value)) f.state = READY;
  return f.state == READY;
}

void arrange(Worker& w) {
  int n = (int)w.order.size();
  for (int i = 0; i < n; ++i) w.order[i] = w.launch->order == 1 ? n - 1 - i : i;
  if (w.launch->order == 2) w.random.shuffle(w.order);
}

double seconds(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return now.tv_sec + now.tv_nsec * 1e-9;
}

double used(Worker& w) { return seconds(CLOCK_THREAD_CPUTIME_ID) - w.began_s; }

// Ends the launch without a report: what ran out says nothing of the kernel.
[[noreturn]] void give_up(Worker& w) {
  w.shared->late = true;
  _longjmp(w.abandoned, 1);
}

// Gives up where time has run out; called between turns of threads, not within one.
void check_time(Worker& w) {
  const Launch& l = *w.launch;
  if (l.deadline_s <= 0 && l.limit_s <= 0) return;
  double now = seconds(CLOCK_MONOTONIC);
  if (l.deadline_s > 0 && now >= l.deadline_s) give_up(w);
  // To read a thread's own clock takes a call of the system, and no thread uses time up sooner than it passes.
  if (l.limit_s <= 0 || now < w.look_s) return;
  double left = l.limit_s - used(w);
  if (left <= 0) give_up(w);
  w.look_s = now + std::max(left, 1e-4);
}

// A loop without end never takes turns: the signal ends it where it is.
void interrupt(int) {
  if (W && W->in_kernel) give_up(*W);
}

// Ends workers whose time ran out long ago, so that those that still take turns end by themselves.
void watch(Shared* shared) {
  const Launch& l = shared->launch;
  std::unique_lock<std::mutex> hold(shared->watch);
  while (!shared->ended.wait_for(hold, std::chrono::milliseconds(50), [&] { return shared->over; })) {
    for (const std::pair<pthread_t, Worker*>& t : shared->watched) {
      clockid_t clock;
      if (pthread_getcpuclockid(t.first, &clock) != 0) continue;
      bool late = l.limit_s > 0 && seconds(clock) - t.second->began_s > l.limit_s + LATE_S;
      if (!late && !(l.deadline_s > 0 && seconds(CLOCK_MONOTONIC) > l.deadline_s + LATE_S)) continue;
      struct sigaction action = {};
      action.sa_handler = interrupt;
      action.sa_flags = SA_NODEFER | SA_RESTART;  // the handler does not return, and must not stay blocked
      sigaction(SIGRTMAX - 1, &action, nullptr);  // each library has its own
      pthread_kill(t.first, SIGRTMAX - 1);
    }
  }
}

void run_converging(Worker& w) {
  w.alive = (int)w.fibers.size();
  for (Warp& warp : w.warps) warp = Warp();
  for (size_t i = 0; i < w.fibers.size(); ++i) {
    w.fibers[i].state = READY;
    w.warps[i / 32].alive |= 1u << i % 32;
  }
  arrange(w);
  while (w.alive > 0) {
    bool progress = false;
    check_time(w);
    // A warp runs on as far as it can before the next one starts, which shows what nothing but luck keeps in step.
    for (size_t first = 0; first < w.order.size(); first += 32) {
      size_t end = std::min(first + 32, w.order.size());
      bool again = true;
      while (again) {
        again = false;
        check_time(w);
        for (size_t i = first; i < end; ++i)
          if (can_run(w.fibers[w.order[i]])) resume(w, w.order[i]), again = progress = true;
        if (w.launch->order == 2) break;  // a turn each, by chance
      }
    }
    if (progress && w.launch->order == 2) arrange(w);
    if (!progress && !land(w) && !release_active(w)) release_barrier(w);
  }
}

void run_block(Worker& w, uint32_t number) {
  const unsigned* g = w.launch->grid;
  w.block = Index3{number % g[0], number / g[0] % g[1], number / g[0] / g[1]};
  w.random.state = w.launch->seed * 0x2545f4914f6cdd1dull + number;
  if (w.arena) memset(w.arena, POISON, ARENA_START + w.arena_used);
  std::fill(w.writers.begin(), w.writers.end(), 0);
  w.serial = ++serials;
  w.bulk.clear();
  if (w.launch->converges) return run_converging(w);
  arrange(w);
  for (int i : w.order) {
    if (i % 32 == 0) check_time(w);
    w.current = i;
    w.in_kernel = 1;
    w.shared->body(w.launch->buffer);
    w.in_kernel = 0;
  }
}

void prepare(Worker& w) {
  const unsigned* b = w.launch->block;
  size_t threads = (size_t)b[0] * b[1] * b[2];
  w.fibers = std::vector<Fiber>(threads);
  w.warps.resize((threads + 31) / 32);
  w.order.resize(threads);
  for (size_t i = 0; i < threads; ++i) {
    Fiber& f = w.fibers[i];
    f.index = Index3{(unsigned)(i % b[0]), (unsigned)(i / b[0] % b[1]), (unsigned)(i / b[0] / b[1])};
    if (!w.launch->converges) continue;
    void* stack = mmap(nullptr, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stack == MAP_FAILED) {
      {
        std::lock_guard<std::mutex> hold(w.shared->report);
        if (!w.shared->failed)
          snprintf(w.launch->message, (size_t)w.launch->message_bytes, "no memory for the stacks of %zu threads", threads);
      }
      give_up(w);
    }
    w.stacks.push_back((char*)stack);
    getcontext(&f.start);
    f.start.uc_stack.ss_sp = stack;
    f.start.uc_stack.ss_size = STACK_BYTES;
    f.start.uc_link = nullptr;
    makecontext(&f.start, fiber_main, 0);
  }
}

void work(Shared* shared) {
  Worker w{};
  w.shared = shared;
  w.launch = &shared->launch;
  w.began_s = seconds(CLOCK_THREAD_CPUTIME_ID);
  W = &w;
  {
    std::lock_guard<std::mutex> hold(shared->watch);
    shared->watched.emplace_back(pthread_self(), &w);
  }
  if (_setjmp(w.abandoned) == 0) {
    prepare(w);
    while (!shared->failed && !shared->late) {
      size_t i = shared->next++;
      if (i >= shared->blocks.size()) break;
      run_block(w, shared->blocks[i]);
    }
  }
  w.in_kernel = 0;
  {
    std::lock_guard<std::mutex> hold(shared->watch);
    for (std::pair<pthread_t, Worker*>& t : shared->watched)
      if (t.second == &w) t = shared->watched.back();
    shared->watched.pop_back();
  }
  for (char* stack : w.stacks) munmap(stack, STACK_BYTES);
  free(w.arena);
  W = nullptr;
  std::lock_guard<std::mutex> hold(shared->report);
  shared->launch.used_s = std::max(shared->launch.used_s, used(w));
}

Region carve(Worker& w, int64_t bytes, int64_t alignment, const char* name) {
  if (!w.arena) {
    w.arena = (char*)aligned_alloc(1024, ARENA_BYTES);
    memset(w.arena, POISON, ARENA_BYTES);
  }
  int64_t align = std::max<int64_t>(alignment, 64);
  int64_t start = (w.arena_used + align - 1) / align * align;
  if (ARENA_START + start + bytes + GAP_BYTES > ARENA_BYTES)
    fail("resources", "shared array '%s' of %lld bytes: the block's arrays exceed %lld bytes", name, (long long)bytes,
         (long long)ARENA_BYTES);
  w.arena_used = start + bytes + GAP_BYTES;
  return Region{w.arena + ARENA_START + start, bytes, name, SHARED};
}

}  // namespace

int run(Launch& launch, Body body) {
  launch.used_s = 0;
  Shared shared{launch, body, {}};
  size_t count = launch.chosen ? (size_t)launch.chosen_count : (size_t)launch.grid[0] * launch.grid[1] * launch.grid[2];
  shared.blocks.resize(count);
  for (size_t i = 0; i < count; ++i) {
    size_t n = launch.order == 1 ? count - 1 - i : i;
    shared.blocks[i] = launch.chosen ? launch.chosen[n] : (uint32_t)n;
  }
  if (launch.order == 2) Random{launch.seed}.shuffle(shared.blocks);
  std::thread watcher;
  if (launch.limit_s > 0 || launch.deadline_s > 0) try {
      watcher = std::thread(watch, &shared);
    } catch (const std::system_error&) {  // no more threads: turns alone look at the clock
    }
  if (launch.workers <= 1) {
    work(&shared);
  } else {
    std::vector<std::thread> threads;
    try {
      for (int i = 0; i < launch.workers; ++i) threads.emplace_back(work, &shared);
    } catch (const std::system_error&) {  // the system has no more threads: those that are there do the work
      if (threads.empty()) work(&shared);
    }
    for (std::thread& t : threads) t.join();
  }
  if (watcher.joinable()) {
    {
      std::lock_guard<std::mutex> hold(shared.watch);
      shared.over = true;
    }
    shared.ended.notify_all();
    watcher.join();
  }
  return shared.failed ? 1 : shared.late ? 2 : 0;
}

void fail(const char* kind, const char* format, ...) {
  Worker& w = *W;
  {
    std::lock_guard<std::mutex> hold(w.shared->report);
    if (!w.shared->failed.exchange(true)) {
      char text[768];
      va_list arguments;
      va_start(arguments, format);
      vsnprintf(text, sizeof text, format, arguments);
      va_end(arguments);
      Index3 t = w.fibers.empty() ? Index3{0, 0, 0} : w.fibers[w.current].index;
      snprintf(w.launch->message, (size_t)w.launch->message_bytes, "%s: block (%u, %u, %u), thread (%u, %u, %u): %s", kind,
               w.block.x, w.block.y, w.block.z, t.x, t.y, t.z, text);
    }
  }
  _longjmp(w.abandoned, 1);
}

void fail_access(const Region* region, const void* address, int64_t bytes, int64_t alignment) {
  if (!region)
    fail("misaligned", "%lld-byte access of a local array that is not %lld-byte aligned", (long long)bytes,
         (long long)alignment);
  long long offset = (const char*)address - region->base;
  const char* space = region->space == SHARED ? "shared array" : "global buffer";
  if (offset < 0 || offset > region->bytes - bytes)
    fail("out of bounds", "%lld-byte access at byte %lld of %s '%s', which has %lld bytes", (long long)bytes, offset, space,
         region->name, (long long)region->bytes);
  fail("misaligned", "%lld-byte access at byte %lld of %s '%s' needs a multiple of %lld bytes", (long long)bytes, offset,
       space, region->name, (long long)alignment);
}

void fail_local(const char* name, int64_t index, int64_t count) {
  fail("out of bounds", "element %lld of local array '%s', which has %lld", (long long)index, name, (long long)count);
}

void block_barrier(int line) {
  Fiber& f = W->fibers[W->current];
  f.line = line;
  f.state = AT_BARRIER;
  switch_out();
}

unsigned active_mask(int line) {
  Fiber& f = W->fibers[W->current];
  f.line = line;
  f.state = AT_ACTIVE_MASK;
  switch_out();
  return f.mask;
}

void collective(unsigned mask, int kind, void* mine, Collective run) {
  Worker& w = *W;
  int lane = w.current % 32, first = w.current - lane;
  Fiber& f = w.fibers[w.current];
  Warp& warp = w.warps[first / 32];
  if (!(mask >> lane & 1)) fail("divergence", "executes a warp instruction whose mask 0x%08x lacks its own lane", mask);
  f.mask = mask;
  f.kind = kind;
  f.mine = mine;
  f.run = run;
  f.state = AT_COLLECTIVE;
  warp.posted |= 1u << lane;
  unsigned members = mask & warp.alive;
  if ((warp.posted & members) == members)
    complete(warp, first, members);
  else
    switch_out();
}

Index3 thread_index() { return W->fibers[W->current].index; }
Index3 block_index() { return W->block; }
Index3 block_extent() { return Index3{W->launch->block[0], W->launch->block[1], W->launch->block[2]}; }
Index3 grid_extent() { return Index3{W->launch->grid[0], W->launch->grid[1], W->launch->grid[2]}; }
unsigned lane_index() { return (unsigned)W->current % 32; }
unsigned warp_index() { return (unsigned)W->current / 32; }
uint64_t block_serial() { return W->serial; }

const Region* shared_region(int id, int64_t bytes, int64_t alignment, const char* name) {
  Worker& w = *W;
  if (id >= MAX_ARRAYS) fail("resources", "more than %d shared arrays in one kernel", MAX_ARRAYS);
  if (!w.arrays[id].base) w.arrays[id] = carve(w, bytes, alignment, name);
  return &w.arrays[id];
}

const Region* dynamic_region(const char* name) {
  Worker& w = *W;
  if (!w.dynamic.base) w.dynamic = carve(w, w.launch->dynamic_shared_bytes, 1024, name);
  return &w.dynamic;
}

const Region* region_of(const void* address, int64_t bytes) {
  Worker& w = *W;
  const char* a = (const char*)address;
  const Region* nearest = nullptr;
  int64_t least = NEAR_BYTES;
  auto look = [&](const Region& r) {
    if (!r.base) return;
    int64_t distance = a < r.base ? r.base - a : a >= r.base + r.bytes ? a - (r.base + r.bytes) + 1 : 0;
    if (distance < least) least = distance, nearest = &r;
  };
  for (int i = 0; i < w.launch->buffers; ++i) look(w.launch->buffer[i]);
  for (const Region& r : w.arrays) look(r);
  look(w.dynamic);
  if (nearest && least == 0) return nearest;
  const char* here = (const char*)__builtin_frame_address(0);
  if (a > here && a < here + STACK_BYTES) return nullptr;
  if (nearest) fail_access(nearest, address, bytes, 1);
  fail("out of bounds", "%lld-byte access at an address in no buffer of this launch", (long long)bytes);
}

unsigned shared_address(const void* pointer) {
  Worker& w = *W;
  int64_t offset = w.arena ? (const char*)pointer - w.arena : -1;
  if (offset < 0 || offset >= ARENA_BYTES) fail("out of bounds", "a pointer that is not to shared memory is used as one");
  return (unsigned)offset;
}

char* shared_pointer(unsigned address) {
  if (!W->arena || address >= ARENA_BYTES) fail("out of bounds", "shared address 0x%x is beyond the scratchpad", address);
  return W->arena + address;
}

bool at_once(int order) {
  Worker& w = *W;
  return w.launch->order == order || (w.launch->order == 2 && (w.random.next() & 1));
}

void async_copy(char* target, const char* source, int64_t bytes, int64_t source_bytes) {
  Worker& w = *W;
  Copy copy{target, source, bytes, source_bytes, w.fibers[w.current].group};
  if (at_once(0))
    perform(copy);
  else
    w.fibers[w.current].copies.push_back(copy);
}

void async_commit() { W->fibers[W->current].group++; }

void async_wait(int groups_left) {
  Fiber& f = W->fibers[W->current];
  size_t kept = 0;
  for (const Copy& c : f.copies) {
    if (c.group >= f.group - groups_left) {
      f.copies[kept++] = c;
      continue;
    }
    perform(c);
  }
  f.copies.resize(kept);
}

void bulk_copy(char* target, const char* source, int64_t bytes, uint64_t* barrier) {
  W->bulk.push_back(Bulk{target, source, bytes, barrier});
  if (at_once(0)) land(*W);
}

void wait_until(bool (*ready)(const void*, unsigned), const void* what, unsigned value) {
  if (ready(what, value)) return;
  Fiber& f = W->fibers[W->current];
  f.ready = ready, f.what = what, f.value = value;
  f.state = WAITING;
  switch_out();
}

// A barrier object: bit 0 its phase, bits 1-15 arrivals it expects, 16-30 those pending, 32-63 bytes pending.
void barrier_complete(uint64_t* barrier, int64_t arrivals, int64_t bytes) {
  uint64_t b = *barrier;
  if (b >> 31 & 1) fail("misuse", "an mbarrier that no mbarrier.init has made");
  int64_t phase = b & 1, expected = b >> 1 & 0x7fff, pending = b >> 16 & 0x7fff, left = (int32_t)(b >> 32);
  pending -= arrivals, left -= bytes;
  if (pending < 0) fail("misuse", "more than %lld threads arrive at an mbarrier in one phase", (long long)expected);
  if (!pending && !left) phase ^= 1, pending = expected;
  *barrier = (uint64_t)phase | (uint64_t)expected << 1 | (uint64_t)pending << 16 | (uint64_t)(uint32_t)(int32_t)left << 32;
}

void proxy_fence() {
  Worker& w = *W;
  std::vector<uint32_t>& own = w.fibers[w.current].unpublished;
  for (uint32_t granule : own)
    if (w.writers[granule] == w.current + 1) w.writers[granule] = 0;
  own.clear();
}

void async_proxy_reads(const char* from, int64_t bytes) {
  Worker& w = *W;
  if (w.writers.empty()) return;
  for (int64_t at = from - w.arena; at < from - w.arena + bytes; at += GRANULE_BYTES) {
    int writer = w.writers[at / GRANULE_BYTES];
    if (!writer) continue;
    const Region* r = region_of(from, bytes);
    fail("proxy", "an asynchronous instruction reads byte %lld of shared array '%s', which a copy of thread %d wrote with "
         "no fence.proxy.async after it", (long long)(from - r->base), r->name, writer - 1);
  }
}

}  // namespace emul
