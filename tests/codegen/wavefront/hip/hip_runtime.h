// HIP on the CPU for tests: one host thread per device thread, wavefronts of 64 lanes, blocks one after another.
// The shuffles are those of hip/amd_detail/amd_warp_functions.h, which does NOT reduce the source lane modulo the width.
#pragma once
#include <barrier>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <thread>
#include <utility>
#include <vector>
using std::max;
using std::min;
struct dim { int x, y, z; };
struct float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(16) int4 { int x, y, z, w; };
struct int2 { int x, y; };
struct ushort2 { unsigned short x, y; };
struct ushort4 { unsigned short x, y, z, w; };
struct uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(32) ulonglong4 { unsigned long long x, y, z, w; };
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline ulonglong4 make_ulonglong4(unsigned long long x, unsigned long long y, unsigned long long z,
                                  unsigned long long w) { return {x, y, z, w}; }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
#define __global__
#define __device__
#define __forceinline__ inline
#define __shared__ static
#define __restrict__
#define __launch_bounds__(n)

namespace wave {
constexpr int LANES = 64;
inline thread_local int lane = 0;
struct Exchange {
  std::barrier<> meet;
  unsigned long long slot[LANES] = {};
  explicit Exchange(int lanes) : meet(lanes) {}
};
inline thread_local Exchange* mine = nullptr;
inline thread_local std::barrier<>* block = nullptr;
// ds_bpermute: the lane read is taken modulo the wavefront.
template <class T> T read(T value, int from) {
  static_assert(sizeof(T) <= sizeof(unsigned long long));
  T got;
  __builtin_memcpy(&mine->slot[lane], &value, sizeof value);
  mine->meet.arrive_and_wait();
  __builtin_memcpy(&got, &mine->slot[from & (LANES - 1)], sizeof got);
  mine->meet.arrive_and_wait();
  return got;
}
}  // namespace wave

inline thread_local dim threadIdx, blockIdx;
template <class T> T __shfl(T v, int source, int width) { return wave::read(v, source + (wave::lane & ~(width - 1))); }
template <class T> T __shfl_down(T v, unsigned delta, int width) {
  const int inside = (wave::lane & (width - 1)) + int(delta);
  return wave::read(v, inside >= width ? wave::lane : wave::lane + int(delta));
}
template <class T> T __shfl_xor(T v, int lanes, int width) {
  const int source = wave::lane ^ lanes;
  return wave::read(v, source / width <= wave::lane / width ? source : wave::lane);
}
inline void __syncthreads() { wave::block->arrive_and_wait(); }

namespace wave {
template <class... A, std::size_t... I>
void call(void (*kernel)(A...), void** arguments, std::index_sequence<I...>) {
  kernel(static_cast<A>(arguments[I])...);
}
template <class... A> void launch(void (*kernel)(A...), void** arguments, int blocks, int bx, int by) {
  const int threads = bx * by;
  std::barrier<> all(threads);
  std::vector<std::unique_ptr<Exchange>> waves;
  for (int first = 0; first < threads; first += LANES)
    waves.push_back(std::make_unique<Exchange>(min(LANES, threads - first)));
  std::vector<std::thread> pool;
  for (int t = 0; t < threads; ++t)
    pool.emplace_back([&, t] {
      block = &all;
      mine = waves[t / LANES].get();
      lane = t % LANES;
      threadIdx = {t % bx, t / bx, 0};
      for (int b = 0; b < blocks; ++b) {
        blockIdx = {b, 0, 0};
        call(kernel, arguments, std::index_sequence_for<A...>{});
        all.arrive_and_wait();
      }
    });
  for (auto& thread : pool) thread.join();
}
}  // namespace wave
