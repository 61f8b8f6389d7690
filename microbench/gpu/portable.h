// The few names that CUDA and HIP spell differently. Every probe takes `p` (integers; p[0] is the number of steps, so
// that no compiler knows it), reads `in`, and leaves in `out` what only the work it was timed for can produce.
#pragma once

#if defined(__HIPCC__) || defined(__HIP__)
#include <hip/hip_fp16.h>
#include <hip/hip_runtime.h>
// The vector L1 of a CU is far smaller than what the probes walk over; there is nothing to go around.
#define LOAD_BEYOND_L1(pointer) (*(pointer))
#else
#include <cuda_fp16.h>
#define LOAD_BEYOND_L1(pointer) __ldcg(pointer)
#endif

#define THREAD (blockIdx.x * blockDim.x + threadIdx.x)
