// Half and bfloat16 in software: stored as 16 bits, every operation rounded to nearest even; needs emul::bit_cast.
#pragma once

#include <cstdint>
#include <type_traits>

namespace emul {

struct Fp16 {
  static uint16_t narrow(float f) {
    uint32_t x = bit_cast<uint32_t>(f), sign = x >> 16 & 0x8000;
    x &= 0x7fffffff;
    if (x >= 0x47800000) return (uint16_t)(sign | (x > 0x7f800000 ? 0x7fff : 0x7c00));
    if (x < 0x38800000)  // subnormal: adding a half leaves exactly the bits that are kept
      return (uint16_t)(sign | (bit_cast<uint32_t>(bit_cast<float>(x) + 0.5f) - 0x3f000000));
    x += 0xc8000fffu + (x >> 13 & 1);
    return (uint16_t)(sign | x >> 13);
  }
  static float widen(uint16_t h) {
    uint32_t em = h & 0x7fff, sign = (uint32_t)(h & 0x8000) << 16;
    if (em >= 0x7c00) return bit_cast<float>(sign | 0x7f800000 | (em & 0x3ff) << 13);
    if (em >= 0x0400) return bit_cast<float>(sign | ((em << 13) + 0x38000000));
    return bit_cast<float>(sign | bit_cast<uint32_t>((float)em * 0x1p-24f));
  }
};

struct Bf16 {
  static uint16_t narrow(float f) {
    uint32_t x = bit_cast<uint32_t>(f);
    if ((x & 0x7fffffff) > 0x7f800000) return 0x7fff;
    return (uint16_t)((x + 0x7fff + (x >> 16 & 1)) >> 16);
  }
  static float widen(uint16_t h) { return bit_cast<float>((uint32_t)h << 16); }
};

template <class F>
struct Narrow {
  uint16_t bits;
  Narrow() = default;
  Narrow(float v) : bits(F::narrow(v)) {}
  Narrow(double v) : bits(F::narrow((float)v)) {}
  template <class I, class = typename std::enable_if<std::is_integral<I>::value>::type>
  Narrow(I v) : bits(F::narrow((float)v)) {}
  template <class G, class = typename std::enable_if<!std::is_same<F, G>::value>::type>
  explicit Narrow(const Narrow<G>& o) : bits(F::narrow((float)o)) {}
  operator float() const { return F::widen(bits); }
  Narrow operator-() const { Narrow r; r.bits = bits ^ 0x8000; return r; }
  Narrow operator+() const { return *this; }
  Narrow& operator+=(Narrow o) { return *this = *this + o; }
  Narrow& operator-=(Narrow o) { return *this = *this - o; }
  Narrow& operator*=(Narrow o) { return *this = *this * o; }
  Narrow& operator/=(Narrow o) { return *this = *this / o; }
#define EMUL_OPERATOR(R, OP) \
  friend R operator OP(Narrow a, Narrow b) { return R((float)a OP (float)b); }
  EMUL_OPERATOR(Narrow, +)
  EMUL_OPERATOR(Narrow, -)
  EMUL_OPERATOR(Narrow, *)
  EMUL_OPERATOR(Narrow, /)
  EMUL_OPERATOR(bool, ==)
  EMUL_OPERATOR(bool, !=)
  EMUL_OPERATOR(bool, <)
  EMUL_OPERATOR(bool, <=)
  EMUL_OPERATOR(bool, >)
  EMUL_OPERATOR(bool, >=)
#undef EMUL_OPERATOR
};

}  // namespace emul
