#if defined(__CUDACC_RTC__)
typedef signed char int8_t; typedef unsigned char uint8_t; typedef short int16_t; typedef unsigned short uint16_t;
typedef int int32_t; typedef unsigned int uint32_t; typedef long long int64_t; typedef unsigned long long uint64_t;
#else
#include <cstdint>
#endif
  #define uint unsigned int
  #define uchar unsigned char
  #define ushort unsigned short
__forceinline__ __device__ void tvm_builtin_ptx_cp_async_wait_group_async_wait_group_0() {
  asm volatile("cp.async.wait_group 0;" :  :  : "memory");
}
__forceinline__ __device__ void tvm_builtin_ptx_cp_async_wait_group_async_wait_group_1() {
  asm volatile("cp.async.wait_group 1;" :  :  : "memory");
}
__forceinline__ __device__ void tvm_builtin_ptx_cp_async_wait_group_async_wait_group_2() {
  asm volatile("cp.async.wait_group 2;" :  :  : "memory");
}
__forceinline__ __device__ void tvm_builtin_ptx_cp_async_commit_group_async_commit_group() {
  asm volatile("cp.async.commit_group;" :  : );
}

__forceinline__ __device__ void ptx_cp_async_legacy_ca_8_4_4(void* dst, int dst_off, void* src, int src_off) {
  uint8_t* dst_p = (uint8_t*)dst + dst_off * 4;
  uint8_t* src_p = (uint8_t*)src + src_off * 4;
  unsigned int dst_addr = __cvta_generic_to_shared(dst_p);
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2;"
    :: "r"(dst_addr), "l"(src_p), "n"(8));
}
extern "C" __global__ void __launch_bounds__(256) main_kernel(float* __restrict__ A_ptr, float* __restrict__ B_ptr, float* __restrict__ C_ptr) {
  extern __shared__ __align__(64) uchar buf_dyn_shmem_ptr[];
  alignas(64) float C_local_ptr[8];
  for (int i_2_init = 0; i_2_init < 4; ++i_2_init) {
    for (int j_2_init = 0; j_2_init < 2; ++j_2_init) {
      C_local_ptr[((i_2_init * 2) + j_2_init)] = 0x0p+0f/*0.000000e+00*/;
    }
  }
  int cse_v1 = (((int)blockIdx.y) * 4096);
  int cse_v2 = (((int)threadIdx.x) * 2);
  int cse_v3 = (((int)threadIdx.x) >> 4);
  int cse_v4 = (((int)blockIdx.x) * 32);
  int cse_v5 = ((((int)threadIdx.x) >> 3) * 64);
  int cse_v6 = ((((int)threadIdx.x) & 7) * 2);
  int cse_v7 = ((((int)threadIdx.x) >> 4) * 64);
  int cse_v8 = ((((int)threadIdx.x) & 15) * 2);
  int cse_v14 = ((((((int)threadIdx.x) >> 4) * 64) + (((int)blockIdx.x) * 32)) + ((((int)threadIdx.x) & 15) * 2));
  for (int ax0_ax1_fused_0 = 0; ax0_ax1_fused_0 < 2; ++ax0_ax1_fused_0) {
    ptx_cp_async_legacy_ca_8_4_4(buf_dyn_shmem_ptr, (((ax0_ax1_fused_0 * 512) + (((int)threadIdx.x) * 2)) + 1536), A_ptr, ((((((int)blockIdx.y) * 4096) + (ax0_ax1_fused_0 * 2048)) + ((((int)threadIdx.x) >> 3) * 64)) + ((((int)threadIdx.x) & 7) * 2)));
  }
  ptx_cp_async_legacy_ca_8_4_4(buf_dyn_shmem_ptr, (((int)threadIdx.x) * 2), B_ptr, ((((((int)threadIdx.x) >> 4) * 64) + (((int)blockIdx.x) * 32)) + ((((int)threadIdx.x) & 15) * 2)));
  tvm_builtin_ptx_cp_async_commit_group_async_commit_group();
  for (int ax0_ax1_fused_0_1 = 0; ax0_ax1_fused_0_1 < 2; ++ax0_ax1_fused_0_1) {
    ptx_cp_async_legacy_ca_8_4_4(buf_dyn_shmem_ptr, (((ax0_ax1_fused_0_1 * 512) + (((int)threadIdx.x) * 2)) + 2560), A_ptr, (((((((int)blockIdx.y) * 4096) + (ax0_ax1_fused_0_1 * 2048)) + ((((int)threadIdx.x) >> 3) * 64)) + ((((int)threadIdx.x) & 7) * 2)) + 16));
  }
  ptx_cp_async_legacy_ca_8_4_4(buf_dyn_shmem_ptr, ((((int)threadIdx.x) * 2) + 512), B_ptr, (((((((int)threadIdx.x) >> 4) * 64) + (((int)blockIdx.x) * 32)) + ((((int)threadIdx.x) & 15) * 2)) + 1024));
  tvm_builtin_ptx_cp_async_commit_group_async_commit_group();
  for (int k_0 = 0; k_0 < 2; ++k_0) {
    int cse_v13 = ((k_0 * 1024) + ((((int)threadIdx.x) >> 4) * 64));
    int cse_v9 = ((k_0 + 2) % 3);
    __syncthreads();
    for (int ax0_ax1_fused_0_2 = 0; ax0_ax1_fused_0_2 < 2; ++ax0_ax1_fused_0_2) {
      ptx_cp_async_legacy_ca_8_4_4(buf_dyn_shmem_ptr, ((((((k_0 + 2) % 3) * 1024) + (ax0_ax1_fused_0_2 * 512)) + (((int)threadIdx.x) * 2)) + 1536), A_ptr, ((((((((int)blockIdx.y) * 4096) + (ax0_ax1_fused_0_2 * 2048)) + ((((int)threadIdx.x) >> 3) * 64)) + (k_0 * 16)) + ((((int)threadIdx.x) & 7) * 2)) + 32));
    }
    ptx_cp_async_legacy_ca_8_4_4(buf_dyn_shmem_ptr, ((((k_0 + 2) % 3) * 512) + (((int)threadIdx.x) * 2)), B_ptr, (((((k_0 * 1024) + ((((int)threadIdx.x) >> 4) * 64)) + (((int)blockIdx.x) * 32)) + ((((int)threadIdx.x) & 15) * 2)) + 2048));
    tvm_builtin_ptx_cp_async_commit_group_async_commit_group();
    tvm_builtin_ptx_cp_async_wait_group_async_wait_group_2();
    __syncthreads();
    for (int k_1 = 0; k_1 < 16; ++k_1) {
      for (int i_2 = 0; i_2 < 4; ++i_2) {
        for (int j_2 = 0; j_2 < 2; ++j_2) {
          int cse_v10 = ((i_2 * 2) + j_2);
          C_local_ptr[((i_2 * 2) + j_2)] = (C_local_ptr[((i_2 * 2) + j_2)] + (((float*)buf_dyn_shmem_ptr)[(((((k_0 * 1024) + ((((int)threadIdx.x) >> 4) * 64)) + (i_2 * 16)) + k_1) + 1536)] * ((float*)buf_dyn_shmem_ptr)[((((k_0 * 512) + (k_1 * 32)) + ((((int)threadIdx.x) & 15) * 2)) + j_2)]));
        }
      }
    }
  }
  tvm_builtin_ptx_cp_async_wait_group_async_wait_group_1();
  __syncthreads();
  for (int k_1_1 = 0; k_1_1 < 16; ++k_1_1) {
    for (int i_2_1 = 0; i_2_1 < 4; ++i_2_1) {
      for (int j_2_1 = 0; j_2_1 < 2; ++j_2_1) {
        int cse_v11 = ((i_2_1 * 2) + j_2_1);
        C_local_ptr[((i_2_1 * 2) + j_2_1)] = (C_local_ptr[((i_2_1 * 2) + j_2_1)] + (((float*)buf_dyn_shmem_ptr)[(((((((int)threadIdx.x) >> 4) * 64) + (i_2_1 * 16)) + k_1_1) + 3584)] * ((float*)buf_dyn_shmem_ptr)[((((k_1_1 * 32) + ((((int)threadIdx.x) & 15) * 2)) + j_2_1) + 1024)]));
      }
    }
  }
  tvm_builtin_ptx_cp_async_wait_group_async_wait_group_0();
  __syncthreads();
  for (int k_1_2 = 0; k_1_2 < 16; ++k_1_2) {
    for (int i_2_2 = 0; i_2_2 < 4; ++i_2_2) {
      for (int j_2_2 = 0; j_2_2 < 2; ++j_2_2) {
        int cse_v12 = ((i_2_2 * 2) + j_2_2);
        C_local_ptr[((i_2_2 * 2) + j_2_2)] = (C_local_ptr[((i_2_2 * 2) + j_2_2)] + (((float*)buf_dyn_shmem_ptr)[(((((((int)threadIdx.x) >> 4) * 64) + (i_2_2 * 16)) + k_1_2) + 1536)] * ((float*)buf_dyn_shmem_ptr)[(((k_1_2 * 32) + ((((int)threadIdx.x) & 15) * 2)) + j_2_2)]));
      }
    }
  }
  for (int ax0 = 0; ax0 < 4; ++ax0) {
    for (int ax1 = 0; ax1 < 2; ++ax1) {
      C_ptr[((((((((int)blockIdx.y) * 4096) + ((((int)threadIdx.x) >> 4) * 256)) + (ax0 * 64)) + (((int)blockIdx.x) * 32)) + ((((int)threadIdx.x) & 15) * 2)) + ax1)] = C_local_ptr[((ax0 * 2) + ax1)];
    }
  }
}
