/* Runs the steps of a model without Python: calls of compiled kernels, copies, gathers, and lanes that run at the same
 * time.
 *
 * Compiled once by the C compiler that links kernels, with no headers other than these; a saved model includes it.
 * The tables are made by roller_runtime/session/native_frame.py, which declares the same layouts.
 */
#include "thread_pool.h" /* first: it asks the system's headers for more than the standard */
#include "gather_rows.h"
#include <string.h>

/* DLPack's tensor (version 1) and the argument of a TVM function, as their headers declare them. */
typedef struct {
  void *data;
  int32_t device_type, device_id, ndim;
  uint8_t code, bits;
  uint16_t lanes;
  int64_t *shape, *strides;
  uint64_t byte_offset;
} Tensor;

typedef struct {
  int32_t type_index;
  uint32_t padding;
  void *value;
} Argument;

typedef int (*Function)(void *handle, const Argument *arguments, int32_t count, Argument *result);
typedef struct {
  void (*take_error)(void **error);
  int (*drop)(void *object);
} Hooks;

enum { CALL = 0, COPY = 1, TOGETHER = 2, GATHER = 3 };
/* A model that was saved before there were gathers has a runner without this symbol; Python then runs them. */
const int roller_runs_gathers = 1;

/* CALL: arguments from `first` on, `count` of them. COPY: tensor `first` to tensor `count`, by rows.
 * TOGETHER: lanes from `first` on, `count` of them. GATHER: tensors data, positions and target from `first` on; `cuts`
 * are its GatherNumbers. */
typedef struct {
  int64_t kind, first, count;
  int64_t rows, row_bytes, source_offset, source_pitch, target_offset, target_pitch;
  Function function;
  const int64_t *cuts; /* number of tasks of each launch of a CALL, in order; numbers of a GATHER */
  int64_t cut_count;
} Step;

/* One call of a model. `patches` list tensors in the caller's arrays: index of tensor, index of array, byte offset. */
typedef struct {
  const Step *steps;
  const int64_t (*lanes)[2];
  Argument *arguments;
  Tensor *tensors;
  const int64_t (*patches)[3];
  int64_t patch_count;
  char **arrays;
  double *seconds; /* time of every step; NULL if steps are not timed */
  const Hooks *hooks;
  int64_t threads; /* number per call, including the caller; 1 if the call wakes none */
  void *error;         /* error that a kernel raised, or NULL */
  int64_t failed_step; /* the first step that failed, or -1 */
} Frame;

/* Copies below this size finish before another thread is awake; larger ones get COPY_TASKS tasks per thread. */
enum { SHARED_COPY_BYTES = 1 << 20, COPY_TASKS = 4 };

static void fail(Frame *frame, int64_t step) {
  void *error = 0;
  int64_t none = -1;
  frame->hooks->take_error(&error);
  if (__atomic_compare_exchange_n(&frame->failed_step, &none, step, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
    frame->error = error;
  else if (error)
    frame->hooks->drop(error);
}

static void copy_rows(const Step *s, const Tensor *tensors, int64_t from, int64_t to) {
  const char *source = (const char *)tensors[s->first].data + s->source_offset;
  char *target = (char *)tensors[s->count].data + s->target_offset;
  for (int64_t row = from; row < to; ++row)
    memcpy(target + row * s->target_pitch, source + row * s->source_pitch, (size_t)s->row_bytes);
}

typedef struct {
  const Step *step;
  const Tensor *tensors;
} SharedCopy;

static int copy_task(int task, void *group, void *data) {
  const SharedCopy *shared = data;
  const Step *s = shared->step;
  const int64_t tasks = ((Group *)group)->tasks;
  if (s->rows >= tasks) {
    copy_rows(s, shared->tensors, s->rows * task / tasks, s->rows * (task + 1) / tasks);
    return 0;
  }
  const int64_t from = s->row_bytes * task / tasks, to = s->row_bytes * (task + 1) / tasks;
  Step part = *s;
  part.source_offset += from, part.target_offset += from, part.row_bytes = to - from;
  copy_rows(&part, shared->tensors, 0, s->rows);
  return 0;
}

static int gather_task(int task, void *group, void *data) {
  const Gather *gather = data;
  const int64_t tasks = ((Group *)group)->tasks, rows = gather_row_count(gather->numbers);
  return gather_rows(gather, rows * task / tasks, rows * (task + 1) / tasks);
}

static int gather_step(const Step *s, const Tensor *tensors, int inside) {
  const GatherNumbers *numbers = (const GatherNumbers *)s->cuts;
  const Tensor *t = tensors + s->first;
  Gather gather = {numbers, t[0].data, t[1].data, t[2].data};
  const int64_t rows = gather_row_count(numbers);
  if (inside || rows * numbers->row_bytes < SHARED_COPY_BYTES) return gather_rows(&gather, 0, rows);
  return launch(gather_task, &gather, COPY_TASKS * allowed);
}

static int run(Frame *frame, int64_t begin, int64_t end, int inside);

typedef struct {
  Frame *frame;
  int64_t first, count, next;
} Lanes;

/* A thread that is free takes the next lane: there may be more or fewer lanes than threads, of different lengths. */
static int lane_task(int task, void *group, void *data) {
  Lanes *lanes = data;
  (void)task, (void)group;
  for (;;) {
    const int64_t n = __atomic_fetch_add(&lanes->next, 1, __ATOMIC_RELAXED);
    if (n >= lanes->count) return 0;
    const int64_t *lane = lanes->frame->lanes[lanes->first + n];
    if (run(lanes->frame, lane[0], lane[1], 1)) return 0;
  }
}

static int run_step(Frame *frame, const Step *s, int inside) {
  cuts = s->cuts, cut_count = s->cut_count;
  if (s->kind == CALL) {
    Argument result = {0, 0, 0};
    return s->function(0, frame->arguments + s->first, (int32_t)s->count, &result);
  }
  if (s->kind == COPY) {
    SharedCopy shared = {s, frame->tensors};
    if (inside || s->rows * s->row_bytes < SHARED_COPY_BYTES)
      copy_rows(s, frame->tensors, 0, s->rows);
    else
      return launch(copy_task, &shared, COPY_TASKS * allowed);
    return 0;
  }
  if (s->kind == GATHER) return gather_step(s, frame->tensors, inside);
  Lanes lanes = {frame, s->first, s->count, 0};
  return launch(lane_task, &lanes, 0);
}

static int run(Frame *frame, int64_t begin, int64_t end, int inside) {
  for (int64_t n = begin; n < end; ++n) {
    const int64_t start = frame->seconds ? now_ns() : 0;
    if (run_step(frame, frame->steps + n, inside)) {
      fail(frame, n);
      return -1;
    }
    if (frame->seconds) frame->seconds[n] = 1e-9 * (double)(now_ns() - start);
    if (__atomic_load_n(&frame->failed_step, __ATOMIC_ACQUIRE) >= 0) return -1; /* a step in another lane failed */
  }
  return 0;
}

void roller_point(Frame *frame) {
  for (int64_t n = 0; n < frame->patch_count; ++n)
    frame->tensors[frame->patches[n][0]].data = frame->arrays[frame->patches[n][1]] + frame->patches[n][2];
}

int roller_run(Frame *frame, int64_t begin, int64_t end) {
  frame->error = 0;
  frame->failed_step = -1;
  begin_call((int)frame->threads);
  const int failed = run(frame, begin, end, 0);
  end_call();
  return failed;
}

/* For kernel functions that this thread calls directly. */
void roller_use_threads(int count) { use_threads(count); }

int roller_launch(Task task, void *data, int tasks) { return launch(task, data, tasks); }
