// What inline PTX instructions do, by their published per-lane semantics; ptx.py translates statements to these calls.
#pragma once
#include "cuda_emulation.h"

static inline size_t __cvta_generic_to_shared(const void* p) { return emul::shared_address(p); }

namespace emul {
namespace ptx {

template <class T>
inline uint32_t bits(const T& v) {
  static_assert(sizeof(T) <= 4, "expected a 32-bit register");
  uint32_t out = 0;
  memcpy(&out, &v, sizeof(T));
  return out;
}
template <class T>
inline void put(T& to, uint32_t value) { memcpy(&to, &value, sizeof(T)); }

// Addresses: a 32-bit register holds a shared address, a 64-bit one a generic address.
inline char* shared(uint32_t address) { return shared_pointer(address); }
template <class P>
char* generic(P p) { return (char*)(void*)p; }
inline char* generic(uint64_t address) { return (char*)address; }

template <class G>
void cp_async(uint32_t target, G source, int64_t bytes, int64_t source_bytes) {
  if (bytes != 4 && bytes != 8 && bytes != 16) fail("misuse", "cp.async copies 4, 8 or 16 bytes, got %lld", (long long)bytes);
  char* to = span(shared(target), bytes, bytes);
  char* from = source_bytes ? span(generic(source), source_bytes, bytes) : nullptr;
  async_copy(to, from, bytes, source_bytes);
}

template <class T, class P>
void load_global(T* out, int count, P address) {
  memcpy(out, span(generic(address), count * (int64_t)sizeof(T), count * (int64_t)sizeof(T)), (size_t)count * sizeof(T));
}

// Barrier objects and the copies they count (mbarrier, cp.async.bulk). Waiting for a phase suspends the thread.
inline uint64_t* barrier_object(uint32_t address) { return (uint64_t*)span(shared(address), 8, 8); }
inline void mbarrier_init(uint32_t address, uint32_t count) {
  if (count < 1 || count > 0x7fff) fail("misuse", "an mbarrier for %u arrivals is not emulated", count);
  *barrier_object(address) = (uint64_t)count << 1 | (uint64_t)count << 16;
}
inline void mbarrier_arrive(uint32_t address, int64_t expected_bytes) {
  barrier_complete(barrier_object(address), 0, 0 - expected_bytes);
  barrier_complete(barrier_object(address), 1, 0);
}
inline bool mbarrier_passed(const void* barrier, unsigned parity) { return (*(const uint64_t*)barrier & 1) != (parity & 1); }
inline bool mbarrier_wait(uint32_t address, uint32_t parity) {
  uint64_t* barrier = barrier_object(address);
  barrier_complete(barrier, 0, 0);
  wait_until(mbarrier_passed, barrier, parity);
  return true;
}
template <class G>
void bulk_copy(uint32_t target, G source, int64_t bytes, uint32_t barrier) {
  if (bytes < 0 || bytes % 16) fail("misuse", "cp.async.bulk copies a multiple of 16 bytes, got %lld", (long long)bytes);
  emul::bulk_copy(span(shared(target), bytes, 16), span(generic(source), bytes, 16), bytes, barrier_object(barrier));
}

struct Matrices {
  char* row;
  uint32_t out[4];
  int count, transposed;
};
inline void load_matrices(void** lanes, unsigned mask) {
  if (mask != 0xffffffffu) fail("divergence", "ldmatrix needs all 32 lanes, got 0x%08x", mask);
  for (int lane = 0; lane < 32; ++lane) {
    Matrices& own = *(Matrices*)lanes[lane];
    for (int m = 0; m < own.count; ++m) {
      uint16_t pair[2];
      for (int e = 0; e < 2; ++e) {
        int r = own.transposed ? lane % 4 * 2 + e : lane / 4, c = own.transposed ? lane / 4 : lane % 4 * 2 + e;
        memcpy(&pair[e], ((Matrices*)lanes[8 * m + r])->row + 2 * c, 2);
      }
      memcpy(&own.out[m], pair, 4);
    }
  }
}
// Lane 8 m + r gives the address of row r of matrix m; addresses of the lanes beyond are not read.
inline void ldmatrix(uint32_t* out, int count, bool transposed, uint32_t address) {
  Matrices own{nullptr, {}, count, transposed};
  if ((int)lane_index() < 8 * count) own.row = span(shared(address), 16, 16);
  collective(0xffffffffu, LOAD_MATRIX, &own, load_matrices);
  for (int m = 0; m < count; ++m) out[m] = own.out[m];
}

// Element types of mma.sync; `packed` elements fill one 32-bit register.
struct f16 { enum { packed = 2 }; typedef float sum; static sum get(uint32_t r, int e) { return Fp16::widen((uint16_t)(r >> 16 * e)); } };
struct bf16 { enum { packed = 2 }; typedef float sum; static sum get(uint32_t r, int e) { return Bf16::widen((uint16_t)(r >> 16 * e)); } };
struct tf32 { enum { packed = 1 }; typedef float sum; static sum get(uint32_t r, int) { return bit_cast<float>(r & 0xffffe000u); } };
struct s8 { enum { packed = 4 }; typedef int sum; static sum get(uint32_t r, int e) { return (int8_t)(r >> 8 * e); } };
struct u8 { enum { packed = 4 }; typedef int sum; static sum get(uint32_t r, int e) { return (uint8_t)(r >> 8 * e); } };

struct Multiplied {
  const uint32_t *a, *b, *c;
  uint32_t* d;
};
template <class T> struct Accumulator {  // one 32-bit value a register; rows g, g, g + 8, g + 8
  static T get(const uint32_t* r, int i) { return bit_cast<T>(r[i]); }
  static void set(uint32_t* r, int i, T v) { r[i] = bit_cast<uint32_t>(v); }
};
struct f32_sum : Accumulator<float> { enum { bytes = 4 }; };
struct s32_sum : Accumulator<int> {};
struct f16_sum {  // two values a register
  enum { bytes = 2 };
  static float get(const uint32_t* r, int i) { return Fp16::widen((uint16_t)(r[i / 2] >> 16 * (i % 2))); }
  static void set(uint32_t* r, int i, float v) {
    int shift = 16 * (i % 2);
    r[i / 2] = (r[i / 2] & ~(0xffffu << shift)) | (uint32_t)Fp16::narrow(v) << shift;
  }
};

// m16n8k*: lane = 4 g + t. A register r: row g + 8 (r & 1), columns from P t + 4 P (r >> 1); B register r: rows from
// P t + 4 P r, column g; accumulator i: row g + 8 (i >> 1), column 2 t + (i & 1); P elements fill a register.
template <int K, class A, class B, class C>
void multiply(void** lanes, unsigned mask) {
  if (mask != 0xffffffffu) fail("divergence", "mma.sync needs all 32 lanes, got 0x%08x", mask);
  typedef typename A::sum Sum;
  enum { P = A::packed };
  Sum a[16][K], b[K][8];
  for (int lane = 0; lane < 32; ++lane) {
    const Multiplied& m = *(Multiplied*)lanes[lane];
    int g = lane / 4, t = lane % 4;
    for (int r = 0; r < 16 * K / 32 / P; ++r)
      for (int e = 0; e < P; ++e) a[g + 8 * (r & 1)][P * t + e + 4 * P * (r >> 1)] = A::get(m.a[r], e);
    for (int r = 0; r < 8 * K / 32 / P; ++r)
      for (int e = 0; e < P; ++e) b[P * t + e + 4 * P * r][g] = B::get(m.b[r], e);
  }
  for (int lane = 0; lane < 32; ++lane) {
    Multiplied& m = *(Multiplied*)lanes[lane];
    for (int i = 0; i < 4; ++i) {
      int row = lane / 4 + 8 * (i >> 1), column = lane % 4 * 2 + (i & 1);
      Sum sum = (Sum)C::get(m.c, i);
      for (int k = 0; k < K; ++k) sum += a[row][k] * b[k][column];
      C::set(m.d, i, sum);
    }
  }
}
template <int K, class A, class B, class C>
void mma_m16n8(uint32_t* d, const uint32_t* a, const uint32_t* b, const uint32_t* c) {
  Multiplied own{a, b, c, d};
  collective(0xffffffffu, MULTIPLY_MATRIX, &own, multiply<K, A, B, C>);
}

// wmma m16n16k16 on 16-bit operands. Which lane holds which element is unspecified: here pairs of a row go round the
// lanes, and the second half of an operand's registers repeats the first.
inline int wmma_at(int e) { return (e / 2 * 32 + (int)lane_index()) * 2 + e % 2; }
// Rows start at multiples of a lane's share of the fragment (PTX ISA, wmma: strides): `share` bytes.
inline char* wmma_element(uint32_t address, int64_t pitch, bool by_columns, int e, int size, int share) {
  int r = wmma_at(e) / 16, c = wmma_at(e) % 16;
  if (address % 32 || pitch * size % share)
    fail("misaligned", "wmma needs multiples of 32 bytes and rows of %d, got 0x%x and %d", share, address, (int)pitch * size);
  return span(shared(address) + size * (by_columns ? c * pitch + r : r * pitch + c), size, size);
}
inline void wmma_load(uint32_t* out, bool by_columns, uint32_t address, int64_t pitch) {
  int nothing = 0;
  collective(0xffffffffu, SYNC_WARP, &nothing, nullptr);
  for (int e = 0; e < 8; ++e) {
    uint16_t value;
    memcpy(&value, wmma_element(address, pitch, by_columns, e, 2, 32), 2);
    memcpy((char*)out + 2 * e, &value, 2);
  }
  memcpy(out + 4, out, 16);
}
template <class C>
void wmma_store(uint32_t address, const uint32_t* values, int64_t pitch) {
  int nothing = 0;
  collective(0xffffffffu, SYNC_WARP, &nothing, nullptr);
  for (int e = 0; e < 8; ++e) memcpy(wmma_element(address, pitch, false, e, C::bytes, 8 * C::bytes), (const char*)values + C::bytes * e, C::bytes);
}
template <class C>
void wmma_multiply(void** lanes, unsigned mask) {
  if (mask != 0xffffffffu) fail("divergence", "wmma.mma needs all 32 lanes, got 0x%08x", mask);
  float a[256], b[256];
  auto at = [](int lane, int e) { return (e / 2 * 32 + lane) * 2 + e % 2; };
  for (int lane = 0; lane < 32; ++lane)
    for (int e = 0; e < 8; ++e) {
      const Multiplied& m = *(Multiplied*)lanes[lane];
      a[at(lane, e)] = f16::get(m.a[e / 2], e % 2);
      b[at(lane, e)] = f16::get(m.b[e / 2], e % 2);
    }
  for (int lane = 0; lane < 32; ++lane)
    for (int e = 0; e < 8; ++e) {
      Multiplied& m = *(Multiplied*)lanes[lane];
      int row = at(lane, e) / 16, column = at(lane, e) % 16;
      float sum = C::get(m.c, e);
      for (int k = 0; k < 16; ++k) sum += a[row * 16 + k] * b[k * 16 + column];
      C::set(m.d, e, sum);
    }
}
template <class C>
void wmma_mma(uint32_t* d, const uint32_t* a, const uint32_t* b, const uint32_t* c) {
  Multiplied own{a, b, c, d};
  collective(0xffffffffu, MULTIPLY_MATRIX, &own, wmma_multiply<C>);
}

}  // namespace ptx
}  // namespace emul
