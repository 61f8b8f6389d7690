/* Runs a saved model without Python, with inputs from files of raw elements, and writes its outputs the same way.
 *
 *     say() { (cd / && python -c "import roller_runtime; print($1)"); }
 *     include=$(say "roller_runtime.include_folder()")
 *     cc -O2 -pthread -I "$include" -o run_saved_model run_saved_model.c "$include/roller_runtime.c" -ldl
 *     export LD_LIBRARY_PATH=$(say "*roller_runtime.library_folders(), sep=':'")
 *     ./run_saved_model FOLDER OUTPUT_PREFIX [INPUT.bin ...]
 *
 * Without files, all inputs are zeros. In a clone of the project, Python would import the sources, which have no
 * libraries; therefore, it starts in another folder.
 */
#define _POSIX_C_SOURCE 199309L
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "roller_runtime.h"

enum { CALLS = 20 };

static double now_s(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static int transfer(const char *path, const char *mode, void *data, size_t bytes) {
  FILE *file = fopen(path, mode);
  if (!file) return fprintf(stderr, "%s: %s\n", path, strerror(errno)), -1;
  const size_t done = *mode == 'r' ? fread(data, 1, bytes, file) : fwrite(data, 1, bytes, file);
  const int more = *mode == 'r' && fgetc(file) != EOF;
  if (fclose(file) == 0 && done == bytes && !more) return 0;
  return fprintf(stderr, "%s: expected %zu bytes, got %s%zu.\n", path, bytes, more ? "more than " : "", done), -1;
}

static void describe(const char *what, const RollerTensor *t) {
  char name[256];
  snprintf(name, sizeof name, "%s", t->name);
  roller_mask_controls(name);
  printf("%s %s: %s, (", what, name, t->dtype);
  for (int64_t n = 0; n < t->rank; ++n) printf(n ? ", %lld" : "%lld", (long long)t->shape[n]);
  printf("), %lld bytes\n", (long long)t->bytes);
}

int main(int count, char **words) {
  char error[1024], path[4096];
  double seconds[CALLS];
  if (count < 3) return fprintf(stderr, "usage: %s FOLDER OUTPUT_PREFIX [INPUT.bin ...]\n", words[0]), 2;
  const double start = now_s();
  RollerModel *model = roller_open(words[1], NULL, error, sizeof error);
  if (!model) return fprintf(stderr, "%s\n", error), 1;
  const double opened = now_s() - start;
  const size_t inputs = roller_input_count(model), outputs = roller_output_count(model);
  if (count > 3 && (size_t)count - 3 != inputs)
    return fprintf(stderr, "expected %zu files, got %d\n", inputs, count - 3), 2;
  void **arrays = calloc(inputs + outputs, sizeof *arrays);
  for (size_t n = 0; n < inputs + outputs; ++n) {
    const RollerTensor *t = n < inputs ? roller_input(model, n) : roller_output(model, n - inputs);
    describe(n < inputs ? "input" : "output", t);
    arrays[n] = calloc(1, (size_t)t->bytes + 1);
    if (!arrays[n]) return fprintf(stderr, "out of memory\n"), 1;
    if (n < inputs && count > 3 && transfer(words[3 + n], "rb", arrays[n], (size_t)t->bytes)) return 1;
  }
  for (int n = 0; n < CALLS; ++n) {
    const double begin = now_s();
    if (roller_call(model, (const void *const *)arrays, arrays + inputs, error, sizeof error))
      return fprintf(stderr, "%s\n", error), 1;
    seconds[n] = now_s() - begin;
  }
  qsort(seconds, CALLS, sizeof *seconds, by_value);
  printf("opened in %.1f ms; a call takes %.1f us (median of %d); threads: %d\n", 1e3 * opened,
         1e6 * seconds[CALLS / 2], CALLS, roller_threads(model));
  for (size_t n = 0; n < outputs; ++n) {
    snprintf(path, sizeof path, "%s%zu.bin", words[2], n);
    if (transfer(path, "wb", arrays[inputs + n], (size_t)roller_output(model, n)->bytes)) return 1;
  }
  for (size_t n = 0; n < inputs + outputs; ++n) free(arrays[n]);
  free(arrays);
  roller_close(model);
  return 0;
}
