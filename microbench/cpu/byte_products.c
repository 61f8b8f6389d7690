/* Rate of dot products of bytes, and of pairs of 16 bits.
 *
 * Measures: compute.ops_per_cycle_per_unit.dot.int8 (AVX-512 VNNI, AVX-VNNI), .dot.int16 (vpmaddwd and the addition
 *   after it) and .matrix.int8 (AMX): products of two bytes (for .dot.int16, of 16-bit numbers) per cycle and core, on
 *   all cores at once, with operands in registers only. Instructions that the processor lacks are not measured.
 * Spoiled by: too few independent sums (of tiles eight registers allow four), a compiler that merges (every sum is
 *   pinned), a sibling thread on the same core (the tile unit is shared), clocks that fall under wide vectors.
 * Proof: there is no memory access, and half the sums of the dot products reach the same rate.
 */
#include "fma.h"
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
#if defined(__AVX512VNNI__)
typedef __m512i bytes_t;
#define DOT(sum, a, b) _mm512_dpbusd_epi32(sum, a, b)
#define ALL(x) _mm512_set1_epi8(x)
#else
typedef __m256i bytes_t;
#define DOT(sum, a, b) _mm256_dpbusd_avx_epi32(sum, a, b)
#define ALL(x) _mm256_set1_epi8(x)
#endif
#define DOT_CHAINS(name, count)                                              \
  KERNEL(name) {                                                             \
    bytes_t sum[count], a = ALL(3), b = ALL(-5);                             \
    PIN(a);                                                                  \
    PIN(b);                                                                  \
    _Pragma("GCC unroll 64") for (int n = 0; n < count; n++) sum[n] = ALL(n); \
    for (long i = 0; i < repeat; i++) {                                      \
      _Pragma("GCC unroll 64") for (int n = 0; n < count; n++) {             \
        sum[n] = DOT(sum[n], a, b);                                          \
        PIN(sum[n]);                                                         \
      }                                                                      \
    }                                                                        \
    (void)data, (void)bytes;                                                 \
  }
#define HALF_MANY (MANY / 2 + MANY / 6)
DOT_CHAINS(dot_bytes, MANY)
DOT_CHAINS(dot_bytes_half, HALF_MANY)
EXPORT const int dot_products = MANY * (int)sizeof(bytes_t), dot_half_products = HALF_MANY * (int)sizeof(bytes_t);
#else
KERNEL(dot_bytes) { (void)repeat, (void)data, (void)bytes; }
KERNEL(dot_bytes_half) { (void)repeat, (void)data, (void)bytes; }
EXPORT const int dot_products = 0, dot_half_products = 0;
#endif

#if defined(__AVX512BW__) || defined(__AVX2__)
#if defined(__AVX512BW__)
typedef __m512i pairs_t;
#define PRODUCTS(a, b) _mm512_madd_epi16(a, b)
#define ADDED(a, b) _mm512_add_epi32(a, b)
#define ALL_PAIRS(x) _mm512_set1_epi16(x)
#else
typedef __m256i pairs_t;
#define PRODUCTS(a, b) _mm256_madd_epi16(a, b)
#define ADDED(a, b) _mm256_add_epi32(a, b)
#define ALL_PAIRS(x) _mm256_set1_epi16(x)
#endif
/* Additions contend with products for a port, so that very few of them tell less. */
#define FEWER_SUMS (MANY / 2 + MANY / 6)
#define PAIR_CHAINS(name, count)                                                   \
  KERNEL(name) {                                                                   \
    pairs_t sum[count], a = ALL_PAIRS(3), b = ALL_PAIRS(-5), product;              \
    PIN(a);                                                                        \
    PIN(b);                                                                        \
    _Pragma("GCC unroll 64") for (int n = 0; n < count; n++) sum[n] = ALL_PAIRS(n); \
    for (long i = 0; i < repeat; i++) {                                            \
      _Pragma("GCC unroll 64") for (int n = 0; n < count; n++) {                   \
        PIN(a); /* else one product would serve all sums */                        \
        product = PRODUCTS(a, b);                                                  \
        sum[n] = ADDED(sum[n], product);                                           \
        PIN(sum[n]);                                                               \
      }                                                                            \
    }                                                                              \
    (void)data, (void)bytes;                                                       \
  }
PAIR_CHAINS(dot_pairs, MANY)
PAIR_CHAINS(dot_pairs_half, FEWER_SUMS)
EXPORT const int pair_products = MANY * (int)sizeof(pairs_t) / 2;
EXPORT const int pair_half_products = FEWER_SUMS * (int)sizeof(pairs_t) / 2;
#else
KERNEL(dot_pairs) { (void)repeat, (void)data, (void)bytes; }
KERNEL(dot_pairs_half) { (void)repeat, (void)data, (void)bytes; }
EXPORT const int pair_products = 0, pair_half_products = 0;
#endif

#if defined(__AMX_INT8__)
KERNEL(tile_bytes) {
  unsigned char config[64] __attribute__((aligned(64))) = {1};
  for (int n = 0; n < 8; n++) config[16 + 2 * n] = 64, config[48 + n] = 16;
  __asm__ volatile("" : : "r"(config) : "memory"); /* the intrinsic names the first bytes only */
  _tile_loadconfig(config);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
  _tile_zero(6);
  _tile_zero(7);
  for (long i = 0; i < repeat; i++) {
    _tile_dpbusd(0, 4, 6);
    _tile_dpbusd(1, 4, 7);
    _tile_dpbusd(2, 5, 6);
    _tile_dpbusd(3, 5, 7);
  }
  _tile_release();
  (void)data, (void)bytes;
}
EXPORT const int tile_products = 4 * 16 * 16 * 64;
#else
KERNEL(tile_bytes) { (void)repeat, (void)data, (void)bytes; }
EXPORT const int tile_products = 0;
#endif
