// Pointers of kernels: checked ones know their buffer and report bounds and alignment; unchecked ones are plain.
#pragma once
#include <type_traits>

#include "runtime.h"

namespace emul {

#if EMUL_CHECKED

template <class T>
struct Ptr {
  T* p;
  char* base;
  int64_t bytes;
  const Region* region;

  Ptr() : p(nullptr), base(nullptr), bytes(0), region(nullptr) {}
  Ptr(T* p, const Region* r) : p(p), base(r->base), bytes(r->bytes), region(r) {}
  // A plain pointer is to a thread's own variables: only its alignment can be wrong.
  template <class U>
  Ptr(U* raw) : p((T*)raw), base(nullptr), bytes(INT64_MAX), region(nullptr) {}
  // One that was passed as an address without type may be to anything.
  Ptr(void* raw) : Ptr((const void*)raw) {}
  Ptr(const void* raw) : p((T*)raw), base(nullptr), bytes(INT64_MAX), region(raw ? region_of(raw, 1) : nullptr) {
    if (region) base = region->base, bytes = region->bytes;
  }
  template <class U>
  Ptr(const Ptr<U>& o) : p((T*)o.p), base(o.base), bytes(o.bytes), region(o.region) {}

  inline T* checked(T* q) const {
    int64_t offset = (char*)q - base;
    if (__builtin_expect((offset < 0) | (offset > bytes - (int64_t)sizeof(T)) | (((uintptr_t)q & (alignof(T) - 1)) != 0), 0))
      fail_access(region, (const void*)q, sizeof(T), alignof(T));
    return q;
  }
  T& operator*() const { return *checked(p); }
  T* operator->() const { return checked(p); }
  template <class I>
  T& operator[](I i) const { return *checked(p + (ptrdiff_t)i); }
  template <class I>
  Ptr operator+(I i) const { Ptr r = *this; r.p += (ptrdiff_t)i; return r; }
  template <class I, class = typename std::enable_if<std::is_integral<I>::value>::type>
  Ptr operator-(I i) const { Ptr r = *this; r.p -= (ptrdiff_t)i; return r; }
  ptrdiff_t operator-(const Ptr& o) const { return p - o.p; }
  template <class I>
  Ptr& operator+=(I i) { p += (ptrdiff_t)i; return *this; }
  template <class I>
  Ptr& operator-=(I i) { p -= (ptrdiff_t)i; return *this; }
  Ptr& operator++() { ++p; return *this; }
  Ptr operator++(int) { Ptr r = *this; ++p; return r; }
  operator void*() const { return (void*)p; }
};
template <class I, class T>
Ptr<T> operator+(I i, const Ptr<T>& p) { return p + i; }

// An array of one thread. It starts as NaN, so that what was never written shows.
template <class T, int64_t N>
struct Local {
  T v[N];
  const char* name;
  explicit Local(const char* name) : name(name) { memset((void*)v, 0xff, sizeof v); }
  template <class I>
  T& operator[](I i) {
    if (__builtin_expect((uint64_t)(int64_t)i >= (uint64_t)N, 0)) fail_local(name, (int64_t)i, N);
    return v[i];
  }
  operator T*() { return v; }
};

template <class T>
Ptr<T> whole(const Region* r) { return Ptr<T>((T*)r->base, r); }
template <class T>
Ptr<T> adopt(const Ptr<T>& p) { return p; }
// A plain pointer handed to an instruction: find out what it points to.
template <class T>
Ptr<T> adopt(T* raw) {
  const Region* r = region_of((const void*)raw, 1);
  return r ? Ptr<T>(raw, r) : Ptr<T>(raw);
}
// All of `bytes` bytes at `p`, which must be a multiple of `alignment`.
template <class P>
char* span(P pointer, int64_t bytes, int64_t alignment) {
  Ptr<char> p = adopt(pointer);
  int64_t offset = p.p - p.base;
  if (offset < 0 || offset > p.bytes - bytes || ((uintptr_t)p.p & (alignment - 1))) fail_access(p.region, p.p, bytes, alignment);
  return p.p;
}

#else

template <class T>
using Ptr = T*;
template <class T, int64_t N>
struct Local {
  T v[N];
  explicit Local(const char*) {}
  operator T*() { return v; }
};
template <class T>
T* whole(const Region* r) { return (T*)r->base; }
template <class T>
T* adopt(T* p) { return p; }
template <class P>
char* span(P p, int64_t, int64_t) { return (char*)p; }

#endif

template <class T>
Ptr<T> shared_array(int id, int64_t count, int64_t alignment, const char* name) {
  return whole<T>(shared_region(id, count * (int64_t)sizeof(T), alignment, name));
}
template <class T>
Ptr<T> dynamic_array(const char* name) { return whole<T>(dynamic_region(name)); }

}  // namespace emul
