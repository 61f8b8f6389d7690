/* Where the arrays of another library lie in this call, asked through DLPack's C exchange table: no Python object is made.
 *
 * Nothing is remembered from one call to the next, so that an array that was swapped, moved or reshaped is seen.
 */
#include <stdint.h>

/* DLPack's tensor (version 1), as its header declares it. */
typedef struct {
  void *data;
  int32_t device_type, device_id, ndim;
  uint8_t code, bits;
  uint16_t lanes;
  int64_t *shape, *strides;
  uint64_t byte_offset;
} Tensor;

/* What an argument has to be; roller/model/exchange.py declares the same layout. */
typedef struct {
  int64_t position, ndim;
  const int64_t *shape;
  int32_t code, bits;
} Expected;

/* Python's PyTuple_GetItem and DLPack's dltensor_from_py_object_no_sync. */
typedef void *(*Item)(void *tuple, intptr_t position);
typedef int (*View)(void *object, Tensor *out);

enum { HOST = 1 };

static int fits(const Tensor *t, const Expected *e) {
  if (t->device_type != HOST || t->code != e->code || t->bits != e->bits || t->lanes != 1 || t->ndim != e->ndim) return 0;
  int64_t step = 1, aligned = e->bits > 8 ? e->bits / 8 : 1;
  for (int64_t d = e->ndim - 1; d >= 0; --d) {
    if (t->shape[d] != e->shape[d]) return 0;
    if (t->strides && t->shape[d] != 1 && t->strides[d] != step) return 0;
    step *= t->shape[d];
  }
  return ((uint64_t)t->data + t->byte_offset) % aligned == 0;
}

/* Write the addresses of `count` members of a tuple from number `first` on. Returns the number of the first that cannot be
 * read as it is, -1 where all can, -2 where Python has raised. */
int64_t roller_addresses(Item item, View view, void *tuple, const Expected *expected, int64_t first, int64_t count,
                         uint64_t *addresses) {
  for (int64_t n = first; n < count; ++n) {
    Tensor tensor;
    void *object = item(tuple, expected[n].position);
    if (!object || view(object, &tensor)) return -2;
    if (!fits(&tensor, &expected[n])) return n;
    addresses[n] = (uint64_t)tensor.data + tensor.byte_offset;
  }
  return -1;
}
