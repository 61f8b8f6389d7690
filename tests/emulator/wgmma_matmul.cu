#if defined(__CUDACC_RTC__)
typedef unsigned char uint8_t; typedef unsigned int uint32_t; typedef unsigned long long uint64_t;
#else
#include <cstdint>
#endif
#include <cuda_fp16.h>
#include <cuda_bf16.h>
typedef unsigned char uchar;

// C[M, N] = A[M, K] B by wgmma, 128 x 128 x 64 a block of two warp groups; B is [K, N] (N_MAJOR 1) or [N, K] (0).
#define M 136
#define N 200
#define K 376
#define N_MAJOR 1
#define STAGES 4
#define TILE 16384  // bytes of 128 rows of 128 bytes

__forceinline__ __device__ uint64_t descriptor(const void* tile, int leading, int stride) {
  uint64_t start = __cvta_generic_to_shared(tile);
  return (start & 0x3FFFF) >> 4 | (uint64_t)(leading >> 4) << 16 | (uint64_t)(stride >> 4) << 32 | (uint64_t)1 << 62;
}
__forceinline__ __device__ void copy16(void* to, const void* from, int bytes) {
  uint32_t target = __cvta_generic_to_shared(to);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(target), "l"(from), "r"(bytes) : "memory");
}
__forceinline__ __device__ void multiply(float* acc, uint64_t a, uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
               "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, "
               "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, "
               "%44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
               "}, %64, %65, 1, 1, 1, 0, %66;"
               : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3]), "+f"(acc[4]), "+f"(acc[5]),
                 "+f"(acc[6]), "+f"(acc[7]), "+f"(acc[8]), "+f"(acc[9]), "+f"(acc[10]), "+f"(acc[11]),
                 "+f"(acc[12]), "+f"(acc[13]), "+f"(acc[14]), "+f"(acc[15]), "+f"(acc[16]), "+f"(acc[17]),
                 "+f"(acc[18]), "+f"(acc[19]), "+f"(acc[20]), "+f"(acc[21]), "+f"(acc[22]), "+f"(acc[23]),
                 "+f"(acc[24]), "+f"(acc[25]), "+f"(acc[26]), "+f"(acc[27]), "+f"(acc[28]), "+f"(acc[29]),
                 "+f"(acc[30]), "+f"(acc[31]), "+f"(acc[32]), "+f"(acc[33]), "+f"(acc[34]), "+f"(acc[35]),
                 "+f"(acc[36]), "+f"(acc[37]), "+f"(acc[38]), "+f"(acc[39]), "+f"(acc[40]), "+f"(acc[41]),
                 "+f"(acc[42]), "+f"(acc[43]), "+f"(acc[44]), "+f"(acc[45]), "+f"(acc[46]), "+f"(acc[47]),
                 "+f"(acc[48]), "+f"(acc[49]), "+f"(acc[50]), "+f"(acc[51]), "+f"(acc[52]), "+f"(acc[53]),
                 "+f"(acc[54]), "+f"(acc[55]), "+f"(acc[56]), "+f"(acc[57]), "+f"(acc[58]), "+f"(acc[59]),
                 "+f"(acc[60]), "+f"(acc[61]), "+f"(acc[62]), "+f"(acc[63])
               : "l"(a), "l"(b), "n"(N_MAJOR));
}
__forceinline__ __device__ void fill(half* A_ptr, half* B_ptr, uchar* buf_ptr, int k, int m0, int n0) {
  int k0 = k * 64;
  uchar* stage = buf_ptr + k % STAGES * (2 * TILE);
  #pragma unroll
  for (int c = 0; c < 4; ++c) {
    int i = c * 256 + threadIdx.x, row = i >> 3, chunk = i & 7, at = row * 128 + ((chunk ^ (row & 7)) << 4);
    bool inside = m0 + row < M && k0 + chunk * 8 < K;
    copy16(stage + at, inside ? A_ptr + (m0 + row) * K + k0 + chunk * 8 : A_ptr, inside ? 16 : 0);
#if N_MAJOR
    row = i >> 4, chunk = i & 15, at = (chunk >> 3) * 8192 + row * 128 + (((chunk & 7) ^ (row & 7)) << 4);
    inside = k0 + row < K && n0 + chunk * 8 < N;
    copy16(stage + TILE + at, inside ? B_ptr + (k0 + row) * N + n0 + chunk * 8 : B_ptr, inside ? 16 : 0);
#else
    inside = n0 + row < N && k0 + chunk * 8 < K;
    copy16(stage + TILE + at, inside ? B_ptr + (n0 + row) * K + k0 + chunk * 8 : B_ptr, inside ? 16 : 0);
#endif
  }
}
extern "C" __global__ void __launch_bounds__(256) f(half* __restrict__ A_ptr, half* __restrict__ B_ptr, float* __restrict__ C_ptr) {
  extern __shared__ __align__(1024) uchar buf_ptr[];
  float acc_ptr[64];
  int n0 = blockIdx.x * 128, m0 = blockIdx.y * 128, steps = (K + 63) / 64, group = threadIdx.x >> 7;
  #pragma unroll
  for (int i = 0; i < 64; ++i) acc_ptr[i] = 0.0f;
  #pragma unroll
  for (int s = 0; s < STAGES - 2; ++s) {
    if (s < steps) fill(A_ptr, B_ptr, buf_ptr, s, m0, n0);
    asm volatile("cp.async.commit_group;" ::: "memory");
  }
  for (int k = 0; k < steps; ++k) {
    asm volatile("cp.async.wait_group %0;" :: "n"(STAGES - 3) : "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    uchar* tile = buf_ptr + k % STAGES * (2 * TILE);
    uint64_t a = descriptor((void*)(tile + group * 8192), 16, 1024);
    uint64_t b = descriptor((void*)(tile + TILE), N_MAJOR ? 8192 : 16, 1024);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    #pragma unroll
    for (int i = 0; i < 4; ++i) multiply(&acc_ptr[0], a + i * 2, b + i * (N_MAJOR ? 128 : 2));
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    // The stage of the step before the last one: all warps have waited for its products, the barrier says.
    if (k + STAGES - 2 < steps) fill(A_ptr, B_ptr, buf_ptr, k + STAGES - 2, m0, n0);
    asm volatile("cp.async.commit_group;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
  }
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  int row = m0 + group * 64 + (threadIdx.x >> 5 & 3) * 16 + (threadIdx.x >> 2 & 7), column = n0 + (threadIdx.x & 3) * 2;
  #pragma unroll
  for (int i = 0; i < 64; ++i) {
    int r = row + (i >> 1 & 1) * 8, c = column + (i >> 2) * 8 + (i & 1);
    if (r < M && c < N) C_ptr[r * N + c] = acc_ptr[i];
  }
}
