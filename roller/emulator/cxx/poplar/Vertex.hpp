// A stand-in for Poplar's <poplar/Vertex.hpp>, of our own: what codelets of roller use of it, checked.
//
// A field knows which elements of its unit's memory hold anything: those that an exchange or a codelet put there. To
// read any other one is a fault, as it is to leave the field. A store of a worker writes a word of 32 bits, so it is one
// for two workers of a codelet to write into the same word.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <type_traits>

namespace emul {
template <class To, class From>
static inline To bit_cast(From v) {
  static_assert(sizeof(To) == sizeof(From), "");
  To r;
  memcpy(&r, &v, sizeof r);
  return r;
}
}  // namespace emul

#include "narrow_types.h"

typedef emul::Narrow<emul::Fp16> half;

namespace roller_steps {

// Mirror of roller.emulator.codelet_emulator.FieldStruct.
struct Field {
  void* data;
  uint8_t* held;
  uint8_t* owners;
  int64_t elements;
  const char* name;
};

static char fault[256];
static unsigned worker;

static inline void report(const Field* f, int64_t i, const char* what) {
  if (!fault[0]) snprintf(fault, sizeof fault, "%s[%lld] of %lld: %s", f->name, (long long)i, (long long)f->elements, what);
}

static inline bool inside(const Field* f, int64_t i) {
  if (i >= 0 && i < f->elements) return true;
  report(f, i, "outside of the unit's copy");
  return false;
}

template <class T>
static inline T read(const Field* f, int64_t i) {
  if (!inside(f, i)) return T(0);
  if (!f->held[i]) report(f, i, "read, but no exchange brought it and no codelet wrote it");
  return static_cast<const T*>(f->data)[i];
}

template <class T>
struct Element {
  Field* field;
  int64_t index;
  operator T() const { return read<T>(field, index); }
  Element& operator=(T value) {
    if (!inside(field, index)) return *this;
    uint8_t& owner = field->owners[index * int64_t(sizeof(T)) / 4];
    if (owner && owner != worker + 1) report(field, index, "another worker of the codelet writes into the same word");
    owner = uint8_t(worker + 1);
    static_cast<T*>(field->data)[index] = value, field->held[index] = 1;
    return *this;
  }
};

}  // namespace roller_steps

namespace poplar {

template <class T>
struct Vector {};

template <class V>
class Input;
template <class T>
class Input<Vector<T>> {
 public:
  T operator[](int64_t i) const { return roller_steps::read<T>(field, i); }
  unsigned size() const { return unsigned(field->elements); }
  roller_steps::Field* field = nullptr;
};

template <class V>
class InOut;
template <class T>
class InOut<Vector<T>> {
 public:
  roller_steps::Element<T> operator[](int64_t i) { return {field, i}; }
  unsigned size() const { return unsigned(field->elements); }
  roller_steps::Field* field = nullptr;
};

template <class V>
class Output;
template <class T>
class Output<Vector<T>> : public InOut<Vector<T>> {};

class MultiVertex {
 public:
  static constexpr unsigned numWorkers() { return ROLLER_WORKERS; }
};

}  // namespace poplar
