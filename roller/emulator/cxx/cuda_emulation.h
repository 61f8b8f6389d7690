// CUDA C++ as the emitted kernels use it: keywords, indices, vector types, scalar functions, atomics.
#pragma once
#include "pointer.h"

#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __forceinline__ inline
#define __noinline__
#define __restrict__
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define alignas(n) __attribute__((aligned(n)))
#define __builtin_align__(n) __attribute__((aligned(n)))
#define __SM_61_INTRINSICS_DECL__ static inline
#define __DEF_IF_HOST ;
#define warpSize 32

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long long ulonglong;

// ---- indices. Kernels hold them in locals of the same names; these serve device functions.
namespace emul {
template <Index3 (*GET)(), int D>
struct Coordinate {
  operator unsigned() const { Index3 i = GET(); return D == 0 ? i.x : D == 1 ? i.y : i.z; }
};
template <Index3 (*GET)()>
struct Coordinates {
  Coordinate<GET, 0> x;
  Coordinate<GET, 1> y;
  Coordinate<GET, 2> z;
};
}  // namespace emul
static emul::Coordinates<emul::thread_index> threadIdx;
static emul::Coordinates<emul::block_index> blockIdx;
static emul::Coordinates<emul::block_extent> blockDim;
static emul::Coordinates<emul::grid_extent> gridDim;

// ---- vector types, with the alignment of the CUDA headers
#define EMUL_VECTORS(T, N, A2, A4)                                                     \
  struct N##1 { T x; };                                                                \
  struct __attribute__((aligned(A2))) N##2 { T x, y; };                                \
  struct N##3 { T x, y, z; };                                                          \
  struct __attribute__((aligned(A4))) N##4 { T x, y, z, w; };                          \
  static inline N##1 make_##N##1(T x) { return N##1{x}; }                              \
  static inline N##2 make_##N##2(T x, T y) { return N##2{x, y}; }                      \
  static inline N##3 make_##N##3(T x, T y, T z) { return N##3{x, y, z}; }              \
  static inline N##4 make_##N##4(T x, T y, T z, T w) { return N##4{x, y, z, w}; }
EMUL_VECTORS(signed char, char, 2, 4)
EMUL_VECTORS(uchar, uchar, 2, 4)
EMUL_VECTORS(short, short, 4, 8)
EMUL_VECTORS(ushort, ushort, 4, 8)
EMUL_VECTORS(int, int, 8, 16)
EMUL_VECTORS(uint, uint, 8, 16)
EMUL_VECTORS(float, float, 8, 16)
EMUL_VECTORS(long long, longlong, 16, 16)
EMUL_VECTORS(ulonglong, ulonglong, 16, 16)
EMUL_VECTORS(double, double, 16, 16)
#undef EMUL_VECTORS

// ---- bits
namespace emul {
template <class To, class From>
inline To bit_cast(From value) {
  static_assert(sizeof(To) == sizeof(From), "sizes differ");
  To out;
  memcpy(&out, &value, sizeof out);
  return out;
}
}  // namespace emul
static inline float __int_as_float(int v) { return emul::bit_cast<float>(v); }
static inline int __float_as_int(float v) { return emul::bit_cast<int>(v); }
static inline float __uint_as_float(uint v) { return emul::bit_cast<float>(v); }
static inline uint __float_as_uint(float v) { return emul::bit_cast<uint>(v); }
static inline double __longlong_as_double(long long v) { return emul::bit_cast<double>(v); }
static inline long long __double_as_longlong(double v) { return emul::bit_cast<long long>(v); }
static inline int __popc(uint v) { return __builtin_popcount(v); }
static inline int __clz(int v) { return v ? __builtin_clz((uint)v) : 32; }
static inline int __ffs(int v) { return __builtin_ffs(v); }
static inline int __mul24(int a, int b) { return a * b; }
static inline int __mulhi(int a, int b) { return (int)(((long long)a * b) >> 32); }
static inline uint __umulhi(uint a, uint b) { return (uint)(((ulonglong)a * b) >> 32); }
static inline uint __byte_perm(uint a, uint b, uint selector) {
  ulonglong both = (ulonglong)b << 32 | a;
  uint out = 0;
  for (int i = 0; i < 4; ++i) {
    uint s = selector >> 4 * i & 15, byte = (uint)(both >> 8 * (s & 7)) & 255;
    if (s & 8) byte = byte & 128 ? 255 : 0;
    out |= byte << 8 * i;
  }
  return out;
}
namespace emul {
template <class A, class B>
inline int dot4(int a, int b, int c) {
  for (int i = 0; i < 4; ++i) c += (int)(A)(a >> 8 * i) * (int)(B)(b >> 8 * i);
  return c;
}
}  // namespace emul
static inline int __dp4a(int a, int b, int c) { return emul::dot4<int8_t, int8_t>(a, b, c); }
static inline uint __dp4a(uint a, uint b, uint c) { return (uint)emul::dot4<uint8_t, uint8_t>((int)a, (int)b, (int)c); }

// ---- scalar functions
#define EMUL_ORDER(T)                                          \
  static inline T max(T a, T b) { return a > b ? a : b; }      \
  static inline T min(T a, T b) { return a < b ? a : b; }
EMUL_ORDER(int)
EMUL_ORDER(uint)
EMUL_ORDER(long)
EMUL_ORDER(unsigned long)
EMUL_ORDER(long long)
EMUL_ORDER(ulonglong)
#undef EMUL_ORDER
// As on a device, the operand that is not NaN wins.
namespace emul {
static inline float max_nan(float a, float b) { return a != a || b != b ? NAN : fmaxf(a, b); }
static inline float min_nan(float a, float b) { return a != a || b != b ? NAN : fminf(a, b); }
}  // namespace emul
static inline float max(float a, float b) { return fmaxf(a, b); }
static inline float min(float a, float b) { return fminf(a, b); }
static inline double max(double a, double b) { return fmax(a, b); }
static inline double min(double a, double b) { return fmin(a, b); }
static inline double max(float a, double b) { return fmax((double)a, b); }
static inline double min(float a, double b) { return fmin((double)a, b); }
static inline double max(double a, float b) { return fmax(a, (double)b); }
static inline double min(double a, float b) { return fmin(a, (double)b); }
static inline uint max(int a, uint b) { return max((uint)a, b); }
static inline uint min(int a, uint b) { return min((uint)a, b); }
static inline uint max(uint a, int b) { return max(a, (uint)b); }
static inline uint min(uint a, int b) { return min(a, (uint)b); }

static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static inline double rsqrt(double x) { return 1.0 / sqrt(x); }
static inline float rsqrt(float x) { return rsqrtf(x); }
static inline float emul_exp10f(float x) { return powf(10.0f, x); }
static inline float __fdividef(float a, float b) { return a / b; }
static inline float __saturatef(float x) { return x < 0.0f ? 0.0f : x > 1.0f ? 1.0f : x == x ? x : 0.0f; }
static inline float __frcp_rn(float x) { return 1.0f / x; }
static inline float __fsqrt_rn(float x) { return sqrtf(x); }
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline int __float2int_rn(float x) { return (int)rintf(x); }
static inline int __float2int_rz(float x) { return (int)x; }
static inline int __float2int_rd(float x) { return (int)floorf(x); }
static inline int __float2int_ru(float x) { return (int)ceilf(x); }
static inline float __int2float_rn(int x) { return (float)x; }
// The C library declares functions of some of these names itself.
#define __expf(x) expf(x)
#define __exp10f(x) emul_exp10f(x)
#define exp10f(x) emul_exp10f(x)
#define __logf(x) logf(x)
#define __log2f(x) log2f(x)
#define __log10f(x) log10f(x)
#define __powf(x, y) powf(x, y)
#define __sinf(x) sinf(x)
#define __cosf(x) cosf(x)
#define __tanf(x) tanf(x)
#define CUDART_INF_F __int_as_float(0x7f800000)
#define CUDART_NAN_F __int_as_float(0x7fffffff)
#define CUDART_INF __longlong_as_double(0x7ff0000000000000LL)
#define CUDART_NAN __longlong_as_double(0x7ff8000000000000LL)

template <class P>
static inline auto __ldg(P p) -> decltype(p[0] + 0) { return *p; }
template <class P>
static inline auto __ldcg(P p) -> typename std::decay<decltype(p[0])>::type { return *p; }
// Time passes here as well, if at another pace: what is computed from it is not a result.
static inline long long clock64() {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (long long)now.tv_sec * 1000000000 + now.tv_nsec;
}

// ---- fences and atomics. Blocks run on several operating system threads, so these are truly atomic.
static inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
static inline void __threadfence_block() { __threadfence(); }
static inline void __threadfence_system() { __threadfence(); }

namespace emul {
template <int BYTES> struct Unsigned;
template <> struct Unsigned<2> { typedef uint16_t type; };
template <> struct Unsigned<4> { typedef uint32_t type; };
template <> struct Unsigned<8> { typedef uint64_t type; };

template <class T, class F>
T update(T* at, F next) {
  typedef typename Unsigned<sizeof(T)>::type Bits;
  Bits* word = (Bits*)(void*)at;
  Bits old = __atomic_load_n(word, __ATOMIC_SEQ_CST);
  for (;;) {
    T before = bit_cast<T>(old);
    if (__atomic_compare_exchange_n(word, &old, bit_cast<Bits>((T)next(before)), false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
      return before;
  }
}
template <class P>
auto target(P p) -> typename std::remove_reference<decltype(*p)>::type* { return &*adopt(p); }
template <class P>
struct Pointee { typedef typename std::remove_reference<decltype(*std::declval<P>())>::type type; };
}  // namespace emul
#define EMUL_ATOMIC(NAME, RESULT)                                                          \
  template <class P, class V>                                                              \
  static inline typename emul::Pointee<P>::type NAME(P p, V value) {                       \
    typedef typename emul::Pointee<P>::type T;                                             \
    T v = (T)value;                                                                        \
    return emul::update(emul::target(p), [v](T old) -> T { return RESULT; });              \
  }
EMUL_ATOMIC(atomicAdd, old + v)
EMUL_ATOMIC(atomicSub, old - v)
EMUL_ATOMIC(atomicMax, old > v ? old : v)
EMUL_ATOMIC(atomicMin, old < v ? old : v)
EMUL_ATOMIC(atomicExch, v)
EMUL_ATOMIC(atomicAnd, old & v)
EMUL_ATOMIC(atomicOr, old | v)
EMUL_ATOMIC(atomicXor, old ^ v)
EMUL_ATOMIC(atomicInc, old >= v ? T(0) : T(old + 1))
EMUL_ATOMIC(atomicDec, old == 0 || old > v ? v : T(old - 1))
#undef EMUL_ATOMIC
template <class P, class C, class V>
static inline typename emul::Pointee<P>::type atomicCAS(P p, C compare, V value) {
  typedef typename emul::Pointee<P>::type T;
  return emul::update(emul::target(p), [=](T old) -> T { return old == (T)compare ? (T)value : old; });
}

#include "warp.h"
#include "narrow.h"
