// nvcuda::wmma. Which lane holds which element is unspecified by CUDA; here it is that of the mma instructions.
#pragma once
#include "cuda_emulation.h"

namespace nvcuda {
namespace wmma {

struct row_major {};
struct col_major {};
struct matrix_a {};
struct matrix_b {};
struct accumulator {};
enum layout_t { mem_row_major, mem_col_major };
namespace precision {
struct tf32 {};
}

template <class T> struct storage { typedef T type; };
template <> struct storage<precision::tf32> { typedef float type; };

template <class Use, int M, int N, int K> struct extent { static const int rows = M, columns = N; };
template <int M, int N, int K> struct extent<matrix_a, M, N, K> { static const int rows = M, columns = K; };
template <int M, int N, int K> struct extent<matrix_b, M, N, K> { static const int rows = K, columns = N; };

template <class Use, int M, int N, int K, class T, class Layout = void>
struct fragment {
  typedef typename storage<T>::type element_type;
  typedef extent<Use, M, N, K> size;
  static const int num_elements = size::rows * size::columns / 32;
  element_type x[num_elements];
};

// Where element `e` of lane `lane` lies in its matrix (row major): pairs of a row go round the lanes.
inline int element_at(int lane, int e) { return (e / 2 * 32 + lane) * 2 + e % 2; }

template <class F, class P>
void load(F& f, P pointer, unsigned pitch, bool by_columns) {
  __syncwarp();
  auto p = emul::adopt(pointer);
  emul::span(p, 1, 32);
  for (int e = 0; e < F::num_elements; ++e) {
    int at = element_at((int)emul::lane_index(), e), r = at / F::size::columns, c = at % F::size::columns;
    f.x[e] = by_columns ? p[(ptrdiff_t)c * pitch + r] : p[(ptrdiff_t)r * pitch + c];
  }
}
template <class Use, int M, int N, int K, class T, class Layout, class P>
void load_matrix_sync(fragment<Use, M, N, K, T, Layout>& f, P p, unsigned pitch) {
  load(f, p, pitch, std::is_same<Layout, col_major>::value);
}
template <int M, int N, int K, class T, class P>
void load_matrix_sync(fragment<accumulator, M, N, K, T>& f, P p, unsigned pitch, layout_t layout) {
  load(f, p, pitch, layout == mem_col_major);
}
template <int M, int N, int K, class T, class P>
void store_matrix_sync(P pointer, const fragment<accumulator, M, N, K, T>& f, unsigned pitch, layout_t layout) {
  __syncwarp();
  auto p = emul::adopt(pointer);
  emul::span(p, 1, 32);
  for (int e = 0; e < M * N / 32; ++e) {
    int at = element_at((int)emul::lane_index(), e), r = at / N, c = at % N;
    if (layout == mem_col_major)
      p[(ptrdiff_t)c * pitch + r] = f.x[e];
    else
      p[(ptrdiff_t)r * pitch + c] = f.x[e];
  }
}
template <class Use, int M, int N, int K, class T, class Layout, class V>
void fill_fragment(fragment<Use, M, N, K, T, Layout>& f, V value) {
  for (auto& x : f.x) x = (typename storage<T>::type)value;
}

template <class A, class B, class C, class D>
struct Operands {
  const A* a;
  const B* b;
  const C* c;
  D* d;
};
template <class A, class B, class C, class D>
void multiply(void** lanes, unsigned mask) {
  if (mask != 0xffffffffu) emul::fail("divergence", "mma_sync needs all 32 lanes, got 0x%08x", mask);
  typedef typename std::conditional<std::is_integral<typename D::element_type>::value, int, float>::type Sum;
  enum { M = D::size::rows, N = D::size::columns, K = A::size::columns };
  Sum a[M * K], b[K * N], sum[M * N];
  for (int lane = 0; lane < 32; ++lane) {
    auto& o = *(Operands<A, B, C, D>*)lanes[lane];
    for (int e = 0; e < A::num_elements; ++e) a[element_at(lane, e)] = (Sum)o.a->x[e];
    for (int e = 0; e < B::num_elements; ++e) b[element_at(lane, e)] = (Sum)o.b->x[e];
    for (int e = 0; e < C::num_elements; ++e) sum[element_at(lane, e)] = (Sum)o.c->x[e];
  }
  for (int i = 0; i < M; ++i)
    for (int k = 0; k < K; ++k)
      for (int j = 0; j < N; ++j) sum[i * N + j] += a[i * K + k] * b[k * N + j];
  for (int lane = 0; lane < 32; ++lane)
    for (int e = 0; e < D::num_elements; ++e)
      ((Operands<A, B, C, D>*)lanes[lane])->d->x[e] = (typename D::element_type)sum[element_at(lane, e)];
}
template <int M, int N, int K, class TD, class TA, class LA, class TB, class LB, class TC>
void mma_sync(fragment<accumulator, M, N, K, TD>& d, const fragment<matrix_a, M, N, K, TA, LA>& a,
              const fragment<matrix_b, M, N, K, TB, LB>& b, const fragment<accumulator, M, N, K, TC>& c, bool = false) {
  typedef fragment<accumulator, M, N, K, TD> D;
  typedef fragment<matrix_a, M, N, K, TA, LA> A;
  typedef fragment<matrix_b, M, N, K, TB, LB> B;
  typedef fragment<accumulator, M, N, K, TC> C;
  Operands<A, B, C, D> own{&a, &b, &c, &d};
  emul::collective(0xffffffffu, emul::MULTIPLY_MATRIX, &own, multiply<A, B, C, D>);
}

}  // namespace wmma
}  // namespace nvcuda
