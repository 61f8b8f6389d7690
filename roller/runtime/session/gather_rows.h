/* Copies rows of a tensor at positions that another tensor contains, for native_runner.c. */
#include <stdint.h>
#include <string.h>

/* Numbers of a gather, as roller_runtime/session/gather_numbers.py writes them; `depth` sizes and then `depth` strides
 * in bytes follow. Row p of the target, for p = (block * tuples + tuple) * inner + lane, is the row of the data at byte
 * block * block_bytes + sum(position[d] * stride[d]) + lane * row_bytes. */
typedef struct {
  int64_t blocks, tuples, inner, depth, position_bytes, shares_positions, block_bytes, row_bytes;
} GatherNumbers;

typedef struct {
  const GatherNumbers *numbers;
  const char *data, *positions;
  char *target;
} Gather;

static int64_t gather_row_count(const GatherNumbers *n) { return n->blocks * n->tuples * n->inner; }

/* `wide` and `row_bytes` are literals in every use, so that each has its own loop; 0 stands for any length of a row. */
static inline __attribute__((always_inline)) int gather_as(
    const Gather *g, int64_t from, int64_t to, int wide, int64_t row_bytes) {
  const GatherNumbers n = *g->numbers;
  const int64_t *sizes = (const int64_t *)(g->numbers + 1), *strides = sizes + n.depth;
  const int64_t bytes = row_bytes ? row_bytes : n.row_bytes, block_rows = n.tuples * n.inner;
  int64_t block = from / block_rows, row = from % block_rows, lane = row % n.inner;
  char *target = g->target + from * bytes;
  for (int64_t p = from; p < to; ++p, target += bytes) {
    const char *source = g->data + block * n.block_bytes + lane * bytes;
    const char *at = g->positions + (n.shares_positions ? row : p) * n.depth * (wide ? 8 : 4);
    for (int64_t d = 0; d < n.depth; ++d, at += wide ? 8 : 4) {
      int64_t position;
      int32_t narrow;
      if (wide)
        memcpy(&position, at, 8);
      else
        memcpy(&narrow, at, 4), position = narrow;
      position += position < 0 ? sizes[d] : 0;
      if ((uint64_t)position >= (uint64_t)sizes[d]) return -1;
      source += position * strides[d];
    }
    memcpy(target, source, (size_t)bytes);
    if (++lane == n.inner) lane = 0;
    if (++row == block_rows) row = 0, ++block;
  }
  return 0;
}

/* Copy rows `from` to `to`; return -1 at the first position that is outside of the data. */
static int gather_rows(const Gather *g, int64_t from, int64_t to) {
  if (from >= to) return 0;
  const int64_t bytes = g->numbers->row_bytes;
  if (g->numbers->position_bytes == 8)
    switch (bytes) {
      case 1: return gather_as(g, from, to, 1, 1);
      case 2: return gather_as(g, from, to, 1, 2);
      case 4: return gather_as(g, from, to, 1, 4);
      case 8: return gather_as(g, from, to, 1, 8);
      default: return gather_as(g, from, to, 1, 0);
    }
  switch (bytes) {
    case 1: return gather_as(g, from, to, 0, 1);
    case 2: return gather_as(g, from, to, 0, 2);
    case 4: return gather_as(g, from, to, 0, 4);
    case 8: return gather_as(g, from, to, 0, 8);
    default: return gather_as(g, from, to, 0, 0);
  }
}
