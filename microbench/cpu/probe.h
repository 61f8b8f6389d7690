/* What every CPU probe shares: vectors of the width the code generator uses, values the compiler may not see through.
 *
 * A kernel is `void name(long repeat, char *data, long bytes)`: the work of one thread in one window (drive.c times it).
 * Vectors are those of GNU C, so one source serves AVX-512, AVX2 and NEON.
 */
#ifndef PROBE_H
#define PROBE_H

#if !defined(VECTOR_BYTES)
#if defined(__AVX512F__)
#define VECTOR_BYTES 64
#elif defined(__AVX__)
#define VECTOR_BYTES 32
#else
#define VECTOR_BYTES 16
#endif
#endif

#if defined(__x86_64__)
#define IN_VECTOR "v"
#define INT_ADD(x, y) __asm__ volatile("add %1, %0" : "+r"(x) : "r"(y))
#elif defined(__aarch64__)
#define IN_VECTOR "w"
#define INT_ADD(x, y) __asm__ volatile("add %0, %0, %1" : "+r"(x) : "r"(y))
#else
#error "the probes know x86-64 and 64-bit Arm"
#endif

/* The value is in a register now, and the compiler no longer knows what it is. */
#define PIN(x) __asm__ volatile("" : "+" IN_VECTOR(x))
#define PIN_INT(x) __asm__ volatile("" : "+r"(x))

#define VECTOR(element, bytes) element __attribute__((vector_size(bytes), aligned(bytes), may_alias))
typedef VECTOR(float, VECTOR_BYTES) floats;
typedef VECTOR(double, VECTOR_BYTES) doubles;
typedef VECTOR(int, VECTOR_BYTES) ints;

/* Registers of the instruction set, for sizes of unrolled loops. */
#if defined(__AVX512F__) || defined(__aarch64__)
#define VECTOR_REGISTERS 32
#else
#define VECTOR_REGISTERS 16
#endif

#define EXPORT __attribute__((visibility("default")))
#define KERNEL(name) EXPORT void name(long repeat, char *data, long bytes)

double probe_now(void);

#endif
