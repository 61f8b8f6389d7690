/*
 * Measures: multiply-adds per second of the matrix unit, per dtype (compute.ops_per_cycle_per_unit.matrix.*, with the
 * clock), through the interface that generated kernels use: 16x16x16 fragments of a warp (wmma; on CDNA the 32x32
 * instruction of a wavefront). An instruction set that gets more out of the unit asynchronously is not counted on.
 *
 * Spoiled by: the dependence of an accumulator on itself (four independent ones per warp, two warps and more per
 * scheduler); loads of fragments (once, before the loop).
 *
 * Proof: operands are small integers and the products exact, the accumulators after any number of steps are known; the
 * loop holds nothing but the multiplications.
 */
#include "portable.h"

#if defined(__gfx908__) || defined(__gfx90a__) || defined(__gfx942__)

typedef _Float16 Half4 __attribute__((ext_vector_type(4)));
typedef float Float16 __attribute__((ext_vector_type(16)));

// All elements of an operand are equal, so that the result does not depend on which lane holds which.
extern "C" __global__ void __launch_bounds__(512) matrix_float16(const int* p, const int* in, float* out) {
  const int steps = p[0];
  const _Float16 x = (_Float16)in[0], y = (_Float16)in[1];
  const Half4 a = {x, x, x, x}, b = {y, y, y, y};
  Float16 acc[4] = {};
#pragma unroll 1
  for (int s = 0; s < steps; ++s) {
#pragma unroll
    for (int j = 0; j < 4; ++j) acc[j] = __builtin_amdgcn_mfma_f32_32x32x8f16(a, b, acc[j], 0, 0, 0);
  }
  float sum = 0.0f;
#pragma unroll
  for (int j = 0; j < 4; ++j) sum += acc[j][0] * (j + 1);
  out[THREAD] = sum;
}

#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 700

#include <mma.h>
using namespace nvcuda;

template <class T, class Sum>
static __device__ __forceinline__ void multiply(const int* p, const T* tile, Sum* out) {
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
