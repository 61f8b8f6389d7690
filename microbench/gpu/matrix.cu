/*
 * Measures: multiply-adds per second of the matrix unit, per dtype (compute.ops_per_cycle_per_unit.matrix.*, with the
 * clock), through the interface that generated kernels use: 16x16x16 fragments of a warp (wmma). Asynchronous
 * instructions that get more out of the unit are not measured.
 *
 * Spoiled by: the dependence of an accumulator on itself (four independent ones per warp, two warps and more per
 * scheduler); loads of fragments (once, before the loop).
 *
 * Proof: operands are small integers and the products exact, the accumulators after any number of steps are known; the
 * loop holds nothing but the multiplications.
 */
#include "portable.h"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 700

#include <mma.h>
using namespace nvcuda;

template <class T, class Sum, class Tile, class Out>
static __device__ __forceinline__ void multiply(const int* p, Tile tile, Out out) {
  const int steps = p[0];
  wmma::fragment<wmma::matrix_a, 16, 16, 16, T, wmma::row_major> a[2];
  wmma::fragment<wmma::matrix_b, 16, 16, 16, T, wmma::row_major> b[2];
  wmma::fragment<wmma::accumulator, 16, 16, 16, Sum> acc[4];
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    wmma::load_matrix_sync(a[j], tile + j * 256, 16);
    wmma::load_matrix_sync(b[j], tile + 512 + j * 256, 16);
  }
#pragma unroll
  for (int j = 0; j < 4; ++j) wmma::fill_fragment(acc[j], (Sum)0);
#pragma unroll 1
  for (int s = 0; s < steps; ++s) {
#pragma unroll
    for (int j = 0; j < 4; ++j) wmma::mma_sync(acc[j], a[j % 2], b[j / 2], acc[j]);
  }
#pragma unroll
  for (int j = 1; j < 4; ++j)
#pragma unroll
    for (int e = 0; e < acc[0].num_elements; ++e) acc[0].x[e] += acc[j].x[e] * (Sum)(j + 1);
  wmma::store_matrix_sync(out + (blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32) * 256, acc[0], 16, wmma::mem_row_major);
}

extern "C" __global__ void __launch_bounds__(512) matrix_float16(const int* p, const int* in, float* out) {
  alignas(32) __shared__ half tile[1024];
  for (int i = threadIdx.x; i < 1024; i += blockDim.x) tile[i] = __float2half((float)in[i]);
  __syncthreads();
  multiply<half, float>(p, tile, out);
}

#if __CUDA_ARCH__ >= 800
#include <cuda_bf16.h>

extern "C" __global__ void __launch_bounds__(512) matrix_bfloat16(const int* p, const int* in, float* out) {
  alignas(32) __shared__ __nv_bfloat16 tile[1024];
  for (int i = threadIdx.x; i < 1024; i += blockDim.x) tile[i] = __float2bfloat16((float)in[i]);
  __syncthreads();
  multiply<__nv_bfloat16, float>(p, tile, out);
}

extern "C" __global__ void __launch_bounds__(512) matrix_int8(const int* p, const int* in, int* out) {
  alignas(32) __shared__ signed char tile[1024];
  for (int i = threadIdx.x; i < 1024; i += blockDim.x) tile[i] = (signed char)in[i];
  __syncthreads();
  multiply<signed char, int>(p, tile, out);
}
#endif

#endif
