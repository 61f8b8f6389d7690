/*
 * Measures: the rates of classes of instructions on a unit that is full of warps (compute.ops_per_cycle_per_unit, with
 * the clock). add is float32 addition, special is the exponential's own instruction, and convert.float16 is the
 * conversion of float16 to float32. convert_to.float16 (float32 to float16) follows from the time by which a conversion
 * there, one back and an addition exceed the latter two. fma.float16 counts two operations per lane and instruction;
 * fma.float64 is measured, too. integer (additions and exclusive-ors) is given where these instructions run beside
 * multiply-adds and do not take turns with them. issue is the largest number of instructions per cycle in a mix for
 * different pipes: floating point beside integer, or beside scratchpad loads.
 *
 * Spoiled by: dependent chains (eight independent values per thread, and all warps that fit); loop overhead (64 or
 * more instructions per turn); a compiler that folds repeated steps (no step can be merged with the next: rounding,
 * or an exclusive-or before an addition, stands between).
 *
 * Proof: the values after any number of steps are known. Between two barriers of a turn only this class is
 * executed, and half as many warps take nearly half the time, so that the pipe and not its latency bounds it.
 */
#include "portable.h"

#define EACH _Pragma("unroll") for (int j = 0; j < 8; ++j)
#define TURN _Pragma("unroll") for (int t = 0; t < 8; ++t)

extern "C" __global__ void __launch_bounds__(1024) add(const int* p, const float* in, float* out) {
  const int steps = p[0];
  const float c = in[1];
  float x[8], sum = 0.0f;
  EACH x[j] = in[0] + j;
#pragma unroll 1
  for (int s = 0; s < steps; ++s) TURN EACH x[j] = x[j] + c;
  EACH sum += x[j];
  out[THREAD] = sum;
}

extern "C" __global__ void __launch_bounds__(1024) special(const int* p, const float* in, float* out) {
  const int steps = p[0];
  float x[8], sum = 0.0f;
  EACH x[j] = in[0] + 0.125f * j;
#pragma unroll 1
  for (int s = 0; s < steps; ++s) TURN EACH x[j] = __expf(-x[j]);
  EACH sum += x[j];
  out[THREAD] = sum;
}

extern "C" __global__ void __launch_bounds__(1024) widen(const int* p, const float* in, float* out) {
  const int steps = p[0];
  float x[8], sum = 0.0f;
  EACH x[j] = in[0] + 0.0625f * j;
#pragma unroll 1
  for (int s = 0; s < steps; ++s) {
    TURN EACH x[j] = __half2float(__ushort_as_half((unsigned short)(__float_as_uint(x[j]) >> 16)));
  }
  EACH sum += x[j];
  out[THREAD] = sum;
}

extern "C" __global__ void __launch_bounds__(1024) convert(const int* p, const float* in, float* out) {
  const int steps = p[0];
  const float c = in[1];
  float x[8], sum = 0.0f;
  EACH x[j] = in[0] + 0.0625f * j;
#pragma unroll 1
  for (int s = 0; s < steps; ++s) TURN EACH x[j] = __half2float(__float2half(x[j])) - c;
  EACH sum += x[j];
  out[THREAD] = sum;
}

extern "C" __global__ void __launch_bounds__(1024) fma_half(const int* p, const float* in, float* out) {
  const int steps = p[0];
  const __half2 a = __float2half2_rn(in[1]), b = __float2half2_rn(in[2]);
  __half2 x[8];
  float sum = 0.0f;
  EACH x[j] = __float2half2_rn(in[0] + 0.125f * j);
#pragma unroll 1
  for (int s = 0; s < steps; ++s) TURN EACH x[j] = __hfma2(x[j], a, b);
  EACH sum += __low2float(x[j]) + __high2float(x[j]);
  out[THREAD] = sum;
}

extern "C" __global__ void __launch_bounds__(1024) fma_double(const int* p, const float* in, float* out) {
  const int steps = p[0];
  const double a = in[1], b = in[2];
  double x[8], sum = 0.0;
  EACH x[j] = in[0] + 0.125 * j;
#pragma unroll 1
  for (int s = 0; s < steps; ++s) TURN EACH x[j] = fma(x[j], a, b);
  EACH sum += x[j];
  out[THREAD] = (float)sum;
}

extern "C" __global__ void __launch_bounds__(1024) integer(const int* p, const float* in, float* out) {
  const int steps = p[0], mask = p[1], more = p[2];
  int n[8], sum = 0;
  EACH n[j] = THREAD + j;
#pragma unroll 1
  for (int s = 0; s < steps; ++s) TURN EACH n[j] = (n[j] ^ mask) + more;
  EACH sum += n[j] & 4095;
  out[THREAD] = (float)sum + in[0];
}

extern "C" __global__ void __launch_bounds__(1024) issue_integer(const int* p, const float* in, float* out) {
  const int steps = p[0], mask = p[1], more = p[2];
  const float a = in[1], b = in[2];
  float x[8], sum = 0.0f;
  int n[8];
  EACH x[j] = in[0] + 0.125f * j;
  EACH n[j] = THREAD + j;
#pragma unroll 1
  for (int s = 0; s < steps; ++s) {
    TURN EACH {
      x[j] = fmaf(x[j], a, b);
      n[j] = (n[j] ^ mask) + more;
      x[j] = fmaf(x[j], a, b);
    }
  }
  EACH sum += x[j] + (float)(n[j] & 255);
  out[THREAD] = sum;
}

extern "C" __global__ void __launch_bounds__(1024) issue_shared(const int* p, const float* in, float* out) {
  __shared__ float tile[8192];
  const int steps = p[0], bump = p[1];
  for (int i = threadIdx.x; i < 8192; i += blockDim.x) tile[i] = in[i];
  __syncthreads();
  const float a = in[1], b = in[2];
  float x[8], sum = 0.0f;
  EACH x[j] = in[0] + 0.125f * j;
  int at = threadIdx.x & 1023;
#pragma unroll 1
  for (int s = 0; s < steps; ++s) {
    const float* row = tile + at;
#pragma unroll
    for (int t = 0; t < 2; ++t) EACH {
      x[j] = fmaf(x[j], a, row[(t * 8 + j) * 257]);  // too far apart for two loads in one instruction
      x[j] = fmaf(x[j], a, b);
    }
    at = at + bump & 1023;
  }
  EACH sum += x[j];
  out[THREAD] = sum;
}
