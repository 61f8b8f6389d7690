// half and bfloat16 in software: stored as 16 bits, every operation rounded to nearest even.
#pragma once

#include "narrow_types.h"

namespace emul {

template <class F>
struct __attribute__((aligned(4))) Pair {
  Narrow<F> x, y;
  Pair() = default;
  Pair(Narrow<F> x, Narrow<F> y) : x(x), y(y) {}
#define EMUL_OPERATOR(OP) \
  friend Pair operator OP(Pair a, Pair b) { return Pair(a.x OP b.x, a.y OP b.y); }
  EMUL_OPERATOR(+)
  EMUL_OPERATOR(-)
  EMUL_OPERATOR(*)
  EMUL_OPERATOR(/)
#undef EMUL_OPERATOR
};

}  // namespace emul

typedef emul::Narrow<emul::Fp16> __half;
typedef emul::Narrow<emul::Bf16> __nv_bfloat16;
typedef emul::Pair<emul::Fp16> __half2;
typedef emul::Pair<emul::Bf16> __nv_bfloat162;
typedef __half half;
typedef __half2 half2;
typedef __nv_bfloat16 nv_bfloat16;
typedef __nv_bfloat162 nv_bfloat162;

#define EMUL_EACH template <class F> static inline
#define EMUL_N emul::Narrow<F>
#define EMUL_P emul::Pair<F>
EMUL_EACH EMUL_N __hadd(EMUL_N a, EMUL_N b) { return a + b; }
EMUL_EACH EMUL_N __hsub(EMUL_N a, EMUL_N b) { return a - b; }
EMUL_EACH EMUL_N __hmul(EMUL_N a, EMUL_N b) { return a * b; }
EMUL_EACH EMUL_N __hdiv(EMUL_N a, EMUL_N b) { return a / b; }
EMUL_EACH EMUL_N __hfma(EMUL_N a, EMUL_N b, EMUL_N c) { return EMUL_N((double)(float)a * (float)b + (float)c); }
EMUL_EACH EMUL_N __hneg(EMUL_N a) { return -a; }
EMUL_EACH EMUL_N __habs(EMUL_N a) { a.bits &= 0x7fff; return a; }
EMUL_EACH EMUL_N __hmax(EMUL_N a, EMUL_N b) { return EMUL_N(fmaxf(a, b)); }
EMUL_EACH EMUL_N __hmin(EMUL_N a, EMUL_N b) { return EMUL_N(fminf(a, b)); }
EMUL_EACH bool __heq(EMUL_N a, EMUL_N b) { return a == b; }
EMUL_EACH bool __hne(EMUL_N a, EMUL_N b) { return a != b; }
EMUL_EACH bool __hlt(EMUL_N a, EMUL_N b) { return a < b; }
EMUL_EACH bool __hle(EMUL_N a, EMUL_N b) { return a <= b; }
EMUL_EACH bool __hgt(EMUL_N a, EMUL_N b) { return a > b; }
EMUL_EACH bool __hge(EMUL_N a, EMUL_N b) { return a >= b; }
EMUL_EACH bool __hisnan(EMUL_N a) { return isnan((float)a); }
EMUL_EACH bool __hisinf(EMUL_N a) { return isinf((float)a); }
EMUL_EACH EMUL_P __hadd2(EMUL_P a, EMUL_P b) { return a + b; }
EMUL_EACH EMUL_P __hsub2(EMUL_P a, EMUL_P b) { return a - b; }
EMUL_EACH EMUL_P __hmul2(EMUL_P a, EMUL_P b) { return a * b; }
EMUL_EACH EMUL_P __hfma2(EMUL_P a, EMUL_P b, EMUL_P c) { return EMUL_P(__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)); }
EMUL_EACH EMUL_P __hmax2(EMUL_P a, EMUL_P b) { return EMUL_P(__hmax(a.x, b.x), __hmax(a.y, b.y)); }
EMUL_EACH EMUL_P __hmin2(EMUL_P a, EMUL_P b) { return EMUL_P(__hmin(a.x, b.x), __hmin(a.y, b.y)); }
#define EMUL_FUNCTION(NAME, VALUE) \
  EMUL_EACH EMUL_N NAME(EMUL_N a) { float x = a; return EMUL_N((float)(VALUE)); }
EMUL_FUNCTION(hexp, expf(x))
EMUL_FUNCTION(hexp2, exp2f(x))
EMUL_FUNCTION(hlog, logf(x))
EMUL_FUNCTION(hlog2, log2f(x))
EMUL_FUNCTION(hlog10, log10f(x))
EMUL_FUNCTION(hsqrt, sqrtf(x))
EMUL_FUNCTION(hrsqrt, 1.0f / sqrtf(x))
EMUL_FUNCTION(hrcp, 1.0f / x)
EMUL_FUNCTION(hsin, sinf(x))
EMUL_FUNCTION(hcos, cosf(x))
EMUL_FUNCTION(htanh, tanhf(x))
EMUL_FUNCTION(hfloor, floorf(x))
EMUL_FUNCTION(hceil, ceilf(x))
EMUL_FUNCTION(htrunc, truncf(x))
EMUL_FUNCTION(hrint, rintf(x))
#undef EMUL_FUNCTION

static inline float __half2float(half a) { return a; }
static inline half __float2half(float a) { return half(a); }
static inline half __float2half_rn(float a) { return half(a); }
static inline half __double2half(double a) { return half(a); }
static inline half __int2half_rn(int a) { return half(a); }
static inline int __half2int_rn(half a) { return (int)rintf(a); }
static inline int __half2int_rz(half a) { return (int)(float)a; }
static inline ushort __half_as_ushort(half a) { return a.bits; }
static inline short __half_as_short(half a) { return (short)a.bits; }
static inline half __ushort_as_half(ushort a) { half h; h.bits = a; return h; }
static inline half2 make_half2(half x, half y) { return half2(x, y); }
static inline half2 __halves2half2(half x, half y) { return half2(x, y); }
static inline half2 __half2half2(half x) { return half2(x, x); }
static inline half2 __floats2half2_rn(float x, float y) { return half2(half(x), half(y)); }
static inline half2 __float22half2_rn(float2 v) { return half2(half(v.x), half(v.y)); }
static inline half2 __float2half2_rn(float v) { return half2(half(v), half(v)); }
static inline float2 __half22float2(half2 v) { return make_float2(v.x, v.y); }
EMUL_EACH EMUL_N __low2half(EMUL_P v) { return v.x; }
EMUL_EACH EMUL_N __high2half(EMUL_P v) { return v.y; }
EMUL_EACH float __low2float(EMUL_P v) { return v.x; }
EMUL_EACH float __high2float(EMUL_P v) { return v.y; }
static inline float __bfloat162float(nv_bfloat16 a) { return a; }
static inline nv_bfloat16 __float2bfloat16(float a) { return nv_bfloat16(a); }
static inline nv_bfloat16 __float2bfloat16_rn(float a) { return nv_bfloat16(a); }
static inline ushort __bfloat16_as_ushort(nv_bfloat16 a) { return a.bits; }
static inline nv_bfloat16 __ushort_as_bfloat16(ushort a) { nv_bfloat16 h; h.bits = a; return h; }
static inline nv_bfloat162 __halves2bfloat162(nv_bfloat16 x, nv_bfloat16 y) { return nv_bfloat162(x, y); }
static inline nv_bfloat162 __floats2bfloat162_rn(float x, float y) { return nv_bfloat162(nv_bfloat16(x), nv_bfloat16(y)); }
static inline nv_bfloat162 __float22bfloat162_rn(float2 v) { return __floats2bfloat162_rn(v.x, v.y); }
static inline float2 __bfloat1622float2(nv_bfloat162 v) { return make_float2(v.x, v.y); }
#undef EMUL_EACH
#undef EMUL_N
#undef EMUL_P
