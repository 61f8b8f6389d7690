/* Where PyTorch's tensors lie in this call, asked through the stable C functions of its library: no Python object is made.
 *
 * Nothing is remembered from one call to the next, so that a tensor that was swapped, moved or reshaped is seen.
 */
#include <stdint.h>

/* Functions of libtorch (aoti_torch_get_...): they take a tensor, which is one pointer, and write what it has. */
typedef void *Tensor;
typedef int32_t (*GetPointer)(Tensor *, void **);
typedef int32_t (*GetSizes)(Tensor *, int64_t **);
typedef int32_t (*GetLong)(Tensor *, int64_t *);
typedef int32_t (*GetInt)(Tensor *, int32_t *);
/* Python's PyTuple_GetItem. */
typedef void *(*Item)(void *tuple, intptr_t position);

/* roller/models/torch/tensor_addresses.py declares the same layouts. `tensor_offset` and `type_offset` are within a Python object. */
typedef struct {
  Item item;
  GetPointer data;
  GetLong dim;
  GetSizes sizes, strides;
  GetInt dtype, device;
  int64_t tensor_offset, type_offset, host;
  void *types[2];
} Library;

typedef struct {
  int64_t position, ndim;
  const int64_t *shape;
  int32_t dtype, itemsize;
} Expected;

/* Whether a tensor is of the expected kind, contiguous and aligned to its elements; its address. */
static int fits(const Library *f, Tensor *tensor, const Expected *e, uint64_t *address) {
  int64_t ndim, *shape, *strides, step = 1;
  int32_t dtype, device;
  void *data;
  if (f->device(tensor, &device) || device != f->host || f->dtype(tensor, &dtype) || dtype != e->dtype) return 0;
  if (f->dim(tensor, &ndim) || ndim != e->ndim) return 0;
  if (f->sizes(tensor, &shape) || f->strides(tensor, &strides) || f->data(tensor, &data)) return 0;
  for (int64_t d = ndim - 1; d >= 0; --d) {
    if (shape[d] != e->shape[d] || (shape[d] != 1 && strides[d] != step)) return 0;
    step *= shape[d];
  }
  if (!data && step) return 0; /* zeros that are only noted have no memory */
  *address = (uint64_t)data;
  return *address % e->itemsize == 0;
}

/* Write the addresses of `count` members of a tuple from number `first` on. Returns the number of the first that cannot be
 * read as it is, -1 where all can. */
int64_t roller_addresses(const Library *f, void *tuple, const Expected *expected, int64_t first, int64_t count,
                         uint64_t *addresses) {
  for (int64_t n = first; n < count; ++n) {
    char *object = f->item(tuple, expected[n].position);
    if (!object) return -2; /* Python has raised */
    void *type = *(void **)(object + f->type_offset);
    if (type != f->types[0] && type != f->types[1]) return n;
    if (!fits(f, (Tensor *)(object + f->tensor_offset), &expected[n], &addresses[n])) return n;
  }
  return -1;
}
