/*
 * Measures: a reduction step of a register tile, as a matrix multiplication runs it: a thread loads RY + RX operands
 * from the scratchpad and does RY*RX multiply-adds. As a function of the tile size and the warps per unit, the time of
 * a step is step_latency + max(1, warps/schedulers) * RY*RX * t_fma + warps/schedulers * step_issue. A fit gives
 * execution.step_latency_s, execution.step_issue_s and, with the clock, compute.ops_per_cycle_per_unit.fma. The clock
 * is the number of cycles that the unit counts under that load, divided by the elapsed seconds (clock_hz: sustained,
 * not boost).
 *
 * Spoiled by: several blocks on one unit while others are idle (one block per unit, as many as units); bank conflicts
 * (lanes read neighbouring vectors or the same one); loads moved ahead by the compiler (the loop is not unrolled).
 *
 * Proof: operands are small integers, the sum of the accumulators is exact and known, so no step can be dropped; the
 * largest tile spends almost all its time in multiply-adds, the smallest almost none, and the fit must explain both.
 */
#include "portable.h"

#define ROW 256
#define WORDS 4096

// N operands of lane `lane`: vectors of up to four, those of neighbouring lanes side by side, `pitch` words on the next.
template <int N>
static __device__ __forceinline__ void load(float* to, const float* row, int lane, int pitch) {
  if (N == 1) to[0] = row[lane];
  if (N == 2) {
    const float2 v = *(const float2*)(row + lane * 2);
    to[0] = v.x, to[N - 1] = v.y;
  }
#pragma unroll
  for (int n = 0; n + 3 < N; n += 4) {
    const float4 v = *(const float4*)(row + (lane * 4 + n / 4 * pitch));
    to[n] = v.x, to[n + 1] = v.y, to[n + 2] = v.z, to[n + 3] = v.w;
  }
}

template <int RY, int RX>
static __device__ __forceinline__ float steps_of(const float* tile, int steps) {
  const int ty = threadIdx.x / 8 % 4, tx = threadIdx.x % 8;
  const char* base = (const char*)tile;
  float acc[RY][RX], a[RY], b[RX];
#pragma unroll
  for (int i = 0; i < RY; ++i)
#pragma unroll
    for (int j = 0; j < RX; ++j) acc[i][j] = 0.0f;
  int at = 0;
#pragma unroll 1
  for (int s = 0; s < steps; ++s) {
    const float* row = (const float*)(base + at);
    load<RY>(a, row, ty, 16);
    load<RX>(b, row + 128, tx, 32);
#pragma unroll
    for (int i = 0; i < RY; ++i)
#pragma unroll
      for (int j = 0; j < RX; ++j) acc[i][j] = fmaf(a[i], b[j], acc[i][j]);
    at = at + ROW * 4 & WORDS * 4 - 1;
  }
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < RY; ++i)
#pragma unroll
    for (int j = 0; j < RX; ++j) sum += acc[i][j] * (float)(1 + (i * RX + j) % 3);
  return sum;
}

static __device__ __forceinline__ void fill(float* tile, const float* in) {
  for (int i = threadIdx.x; i < WORDS; i += blockDim.x) tile[i] = in[i];
}

// Behind the results: cycles of each block.
template <int RY, int RX>
static __device__ __forceinline__ void timed(const int* p, const float* tile, float* out) {
  const int steps = p[0];
  const long long start = clock64();
  out[THREAD] = steps_of<RY, RX>(tile, steps);
  if (threadIdx.x == 0) out[gridDim.x * blockDim.x + blockIdx.x] = (float)(clock64() - start);
}

extern "C" __global__ void __launch_bounds__(1024) tile_1x1(const int* p, const float* in, float* out) {
  alignas(16) __shared__ float tile[WORDS];
  fill(tile, in);
  __syncthreads();
  timed<1, 1>(p, tile, out);
}

extern "C" __global__ void __launch_bounds__(1024) tile_2x2(const int* p, const float* in, float* out) {
  alignas(16) __shared__ float tile[WORDS];
  fill(tile, in);
  __syncthreads();
  timed<2, 2>(p, tile, out);
}

extern "C" __global__ void __launch_bounds__(1024) tile_4x4(const int* p, const float* in, float* out) {
  alignas(16) __shared__ float tile[WORDS];
  fill(tile, in);
  __syncthreads();
  timed<4, 4>(p, tile, out);
}

extern "C" __global__ void __launch_bounds__(512) tile_8x4(const int* p, const float* in, float* out) {
  alignas(16) __shared__ float tile[WORDS];
  fill(tile, in);
  __syncthreads();
  timed<8, 4>(p, tile, out);
}

extern "C" __global__ void __launch_bounds__(512) tile_8x8(const int* p, const float* in, float* out) {
  alignas(16) __shared__ float tile[WORDS];
  fill(tile, in);
  __syncthreads();
  timed<8, 8>(p, tile, out);
}
