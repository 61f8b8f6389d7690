// Interface between emulated kernels and the runtime: launches, regions of memory, fibers, barriers, reports.
#pragma once
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

namespace emul {

enum Space { GLOBAL = 0, SHARED = 1 };

// A buffer a kernel may touch. `name` is what a person calls it.
struct Region {
  char* base;
  int64_t bytes;
  const char* name;
  int space;
};

struct Index3 {
  unsigned x, y, z;
};

// One launch, as described by the caller (mirrored by ctypes in library.py).
struct Launch {
  unsigned grid[3];
  unsigned block[3];
  int64_t dynamic_shared_bytes;
  int order;     // 0 forward, 1 reverse, 2 random
  int workers;   // operating system threads that share the blocks
  int converges; // 0: the kernel has no barrier, so threads need no fibers
  int buffers;
  uint64_t seed;
  const Region* buffer;
  char* message; // the first report is written here, "kind: text"
  int64_t message_bytes;
  const uint32_t* chosen;  // linear numbers of the blocks that run; null: all
  int64_t chosen_count;
  double deadline_s;       // on the monotonic clock; what has not ended by then is given up. 0: none
  double limit_s;          // of the processor that each worker may take, likewise
  double used_s;           // of the processor that the busiest worker took; written
};

typedef void (*Body)(const Region* buffers);
typedef void (*Collective)(void** lanes, unsigned mask);

// Kinds of collectives: lanes of a warp that meet must agree on it.
enum Kind {
  SYNC_WARP = 1, SHUFFLE, VOTE, LOAD_MATRIX, MULTIPLY_MATRIX, REDUCE, MULTIPLY_GROUP, FENCE_GROUP, COMMIT_GROUP, WAIT_GROUP
};

// Returns 0, or 1 where there is a report, 2 where time or memory ran out, which says nothing of the kernel.
int run(Launch& launch, Body body);

// Ends the launch with a report; the text names the block and the thread by itself.
[[noreturn]] void fail(const char* kind, const char* format, ...) __attribute__((format(printf, 2, 3), cold));
[[noreturn]] void fail_access(const Region* region, const void* address, int64_t bytes, int64_t alignment)
    __attribute__((cold));
[[noreturn]] void fail_local(const char* name, int64_t index, int64_t count) __attribute__((cold));

void block_barrier(int line);
unsigned active_mask(int line);
// Meets the lanes of `mask`; the last one to arrive runs `run` with every lane's `mine`.
void collective(unsigned mask, int kind, void* mine, Collective run);

Index3 thread_index();
Index3 block_index();
Index3 block_extent();
Index3 grid_extent();
unsigned lane_index();
unsigned warp_index();
uint64_t block_serial();  // of the block that runs: what is kept per block starts anew when it changes

// Static scratchpad of the running block; the same array for all its threads.
const Region* shared_region(int id, int64_t bytes, int64_t alignment, const char* name);
const Region* dynamic_region(const char* name);
// The region an address lies in; null for an address in the running thread's own stack; reports anything else.
const Region* region_of(const void* address, int64_t bytes);
unsigned shared_address(const void* pointer);
char* shared_pointer(unsigned address);

// Whether an asynchronous operation takes place as it is issued (else when it is waited for): always where blocks run in
// `order`, never in the opposite one, by chance in random order.
bool at_once(int order);

// An asynchronous copy may land at any moment until the thread waits for it: at once in forward order, which shows a
// target still being read; at the wait in reverse order, which shows a missing wait; either in random order.
void async_copy(char* target, const char* source, int64_t bytes, int64_t source_bytes);
void async_commit();
void async_wait(int groups_left);

// A bulk copy, which a barrier object in the scratchpad counts, lands at once, or not before no thread can go on.
void bulk_copy(char* target, const char* source, int64_t bytes, uint64_t* barrier);
void barrier_complete(uint64_t* barrier, int64_t arrivals, int64_t bytes);
// Suspends the thread until `ready(what)`; reports a deadlock where nothing else can make it so.
void wait_until(bool (*ready)(const void*, unsigned), const void* what, unsigned value);

// Instructions of the async proxy see what a thread's copies wrote only after that thread's fence.
void proxy_fence();
void async_proxy_reads(const char* from, int64_t bytes);

}  // namespace emul
