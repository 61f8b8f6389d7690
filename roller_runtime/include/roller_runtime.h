/* Runs models that roller compiled and saved, without Python: models of fixed sizes on this processor, all of whose
 * steps run natively. Compile roller_runtime.c, which is beside this file, into the program (C11):
 *
 *     cc -O2 -pthread program.c roller_runtime.c -ldl
 *
 * A folder contains machine code: open only folders from trusted sources. Linux only.
 */
#ifndef ROLLER_RUNTIME_H
#define ROLLER_RUNTIME_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct RollerModel RollerModel;

/* An input or output. Elements are in C order. `dtype` is NumPy's name; `type_code` is DLPack's (0 signed, 1 unsigned,
 * 2 float, 6 bool; bfloat16 and 8-bit floats are passed as unsigned bits), `bits` the size of an element in bits. */
typedef struct {
  const char *name, *dtype;
  int64_t type_code, bits, bytes, rank;
  const int64_t *shape;
} RollerTensor;

/* Opens a saved model. Code and tables are verified; weights are mapped and not read.
 *
 * libraries: the folder of libtvm_ffi.so and libtvm_runtime.so, such as lib/ of the Python package roller_runtime;
 *            NULL to search as dlopen does. The first call decides for the whole process.
 * error:     receives a message on failure; `error_bytes` is its size. May be NULL.
 *
 * Returns NULL on failure. */
RollerModel *roller_open(const char *folder, const char *libraries, char *error, size_t error_bytes);

/* Returns a model that shares code and weights, with memory of its own: one for each thread that calls. */
RollerModel *roller_clone(const RollerModel *model, char *error, size_t error_bytes);

/* Inputs and outputs, numbered from 0 in the model's order; valid until the model and its clones are closed. */
size_t roller_input_count(const RollerModel *model);
size_t roller_output_count(const RollerModel *model);
const RollerTensor *roller_input(const RollerModel *model, size_t number);
const RollerTensor *roller_output(const RollerModel *model, size_t number);
/* Replaces control characters of a name out of a file (C0, DEL, and C1 in UTF-8) by '?', so that a terminal can show
 * it. Texts of errors need no such call. */
void roller_mask_controls(char *text);

/* Number of threads of a call, including the calling thread: that of the saved model, or fewer if the process has
 * fewer processors; 1 if no step uses other threads. roller_set_threads changes it for this model; values below 1 count
 * as 1, and a model that was saved for one thread keeps one. */
int roller_threads(const RollerModel *model);
void roller_set_threads(RollerModel *model, int threads);

/* Runs the model. `inputs` and `outputs` are one array for each, of the sizes that RollerTensor gives, aligned to their
 * elements; outputs overlap neither inputs nor each other. One thread at a time may call a model.
 *
 * Returns 0, or -1 on failure, with a message in `error`; outputs are then undefined. */
int roller_call(RollerModel *model, const void *const *inputs, void *const *outputs, char *error, size_t error_bytes);

/* Releases the model. Code that was loaded stays loaded. NULL is allowed. */
void roller_close(RollerModel *model);

#ifdef __cplusplus
}
#endif
#endif
