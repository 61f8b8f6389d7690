/* Implementation of roller_runtime.h: reads native.bin of a saved model, which roller_runtime/session/native_program.py
 * writes, loads the kernels and the native runner of the folder, and calls the runner.
 *
 * native.bin is little-endian. Head: "ROLLERNB", version, number of bytes that follow, their SHA-256. Then, in order
 * (numbers have 64 bits; a text is its length with the ending zero, and its bytes, padded to 8; a file is its name and
 * the SHA-256 of its contents):
 *
 *   system, architecture; processor features; name of the model; the runner's file; the weights' file name;
 *   bytes of weights; bytes of the arena; threads; first step and end of the main sequence;
 *   inputs, outputs: name, dtype, type code, bits, bytes, rank, dimensions; kernels: file, symbol;
 *   steps; lanes; dimensions of all tensors; numbers of tasks and of gathers;
 *   tensors: kind of place, caller's array, offset, type code, bits, rank, first dimension.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "roller_runtime.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

enum { VERSION = 1, DIGEST_BYTES = 32, HEAD_BYTES = 8 + 16 + DIGEST_BYTES, LINE_BYTES = 64, HUGE_BYTES = 1 << 21 };
enum { NOWHERE, CONSTANT, ARENA, CALLER };
enum { CALL, COPY, TOGETHER, GATHER };
enum { TENSOR_POINTER = 7, RAW_STRING = 8, HOST = 1 };

/* ---- Layouts of the runner (native_runner.c), of DLPack and of TVM's C interface ------------------------------- */

typedef struct {
  void *data;
  int32_t device_type, device_id, ndim;
  uint8_t code, bits;
  uint16_t lanes;
  const int64_t *shape, *strides;
  uint64_t byte_offset;
} Tensor;

typedef struct {
  int32_t type_index;
  uint32_t padding;
  const void *value;
} Argument;

typedef struct {
  int64_t kind, first, count, rows, row_bytes, source_offset, source_pitch, target_offset, target_pitch;
  void *function;
  const int64_t *cuts;
  int64_t cut_count;
} Step;

typedef struct {
  void (*take_error)(void **error);
  int (*drop)(void *object);
} Hooks;

typedef struct {
  const Step *steps;
  const int64_t *lanes;
  Argument *arguments;
  Tensor *tensors;
  const int64_t *patches;
  int64_t patch_count;
  const void **arrays;
  double *seconds;
  const Hooks *hooks;
  int64_t threads;
  void *error;
  int64_t failed_step;
} Frame;

typedef struct {
  const char *data;
  size_t size;
} Text;

_Static_assert(sizeof(Tensor) == 48 && sizeof(Argument) == 16 && sizeof(Step) == 96 && sizeof(void *) == 8,
               "the file's tables and TVM's structures have these sizes on 64-bit processors alone");

/* ---- Types of this file ---------------------------------------------------------------------------------------- */

typedef struct {
  int64_t place, array, offset, code, bits, rank, first;
} TensorRow;

/* What a model and its clones share. */
typedef struct {
  int users;
  unsigned char *program; /* native.bin; names, dimensions and tables point into it */
  const char *name;
  unsigned char *weights;
  size_t weight_bytes;
  int64_t arena_bytes, threads, begin, end, step_count, tensor_count, dimension_count;
  size_t input_count, output_count;
  RollerTensor *ends; /* inputs, then outputs */
  Step *steps;
  const int64_t *lanes, *dimensions, *cuts;
  const TensorRow *rows;
  void (*point)(Frame *);
  int (*run)(Frame *, int64_t, int64_t);
} Shared;

struct RollerModel {
  Shared *shared;
  Frame frame;
  void *arena;
  Tensor *tensors;
  Argument *arguments;
  int64_t *patches;
  const void **arrays;
};

typedef struct {
  char *text;
  size_t size;
} Message;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *ffi; /* TVM's libtvm_ffi.so, once it is loaded */
static Hooks hooks;

void roller_mask_controls(char *text) {
  for (unsigned char *c = (unsigned char *)text; *c; ++c)
    if (*c < 32 || *c == 127)
      *c = '?';
    else if (*c == 0xC2 && c[1] >= 0x80 && c[1] < 0xA0) /* U+0080 to U+009F */
      *c = c[1] = '?';
}

static int fail(Message to, const char *format, ...) {
  if (to.text && to.size) {
    va_list values;
    va_start(values, format);
    vsnprintf(to.text, to.size, format, values);
    va_end(values);
    roller_mask_controls(to.text); /* names out of files reach no terminal raw */
  }
  return -1;
}

/* ---- SHA-256 (FIPS 180-4) --------------------------------------------------------------------------------------- */

static uint32_t rotate(uint32_t x, int n) { return x >> n | x << (32 - n); }

static void sha256_block(uint32_t state[8], const unsigned char *block) {
  static const uint32_t K[64] = {
      0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
      0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
      0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
      0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
      0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
      0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
      0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
      0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};
  uint32_t w[64], s[8];
  for (int i = 0; i < 16; ++i)
    w[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 | (uint32_t)block[4 * i + 2] << 8 |
           block[4 * i + 3];
  for (int i = 16; i < 64; ++i) {
    const uint32_t a = w[i - 15], b = w[i - 2];
    w[i] = w[i - 16] + (rotate(a, 7) ^ rotate(a, 18) ^ a >> 3) + w[i - 7] + (rotate(b, 17) ^ rotate(b, 19) ^ b >> 10);
  }
  memcpy(s, state, sizeof s);
  for (int i = 0; i < 64; ++i) {
    const uint32_t e = rotate(s[4], 6) ^ rotate(s[4], 11) ^ rotate(s[4], 25), choice = (s[4] & s[5]) ^ (~s[4] & s[6]);
    const uint32_t a = rotate(s[0], 2) ^ rotate(s[0], 13) ^ rotate(s[0], 22);
    const uint32_t one = s[7] + e + choice + K[i] + w[i], two = a + ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
    memmove(s + 1, s, 7 * sizeof *s);
    s[4] += one, s[0] = one + two;
  }
  for (int i = 0; i < 8; ++i) state[i] += s[i];
}

static void sha256(const unsigned char *data, size_t size, unsigned char digest[DIGEST_BYTES]) {
  uint32_t state[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  unsigned char last[128] = {0};
  const size_t whole = size / 64 * 64, rest = size - whole, tail = rest < 56 ? 64 : 128;
  for (size_t at = 0; at < whole; at += 64) sha256_block(state, data + at);
  memcpy(last, data + whole, rest);
  last[rest] = 0x80;
  for (int i = 0; i < 8; ++i) last[tail - 1 - i] = (unsigned char)((uint64_t)size * 8 >> 8 * i);
  for (size_t at = 0; at < tail; at += 64) sha256_block(state, last + at);
  for (int i = 0; i < DIGEST_BYTES; ++i) digest[i] = (unsigned char)(state[i / 4] >> (24 - 8 * (i % 4)));
}

/* ---- Files ------------------------------------------------------------------------------------------------------ */

/* Returns a file's contents in memory aligned to 8 bytes. */
static unsigned char *read_file(const char *path, size_t *size, Message message) {
  struct stat info;
  const int file = open(path, O_RDONLY | O_CLOEXEC), unknown = file < 0 || fstat(file, &info);
  if (unknown || !S_ISREG(info.st_mode)) {
    const char *reason = unknown ? strerror(errno) : "no regular file";
    fail(message, "%s: expected a file of a saved model, got: %s. Save the model again.", path, reason);
    if (file >= 0) close(file);
    return NULL;
  }
  *size = (size_t)info.st_size;
  unsigned char *data = malloc(*size + 8);
  size_t at = 0;
  for (ssize_t got; data && at < *size; at += (size_t)got)
    if ((got = read(file, data + at, *size - at)) <= 0) break; /* shorter than its size: it changed meanwhile */
  close(file);
  if (data && at == *size) return data;
  fail(message, "%s: cannot read it. Copy the folder again.", path);
  free(data);
  return NULL;
}

static int path_of(char path[4096], const char *folder, const char *name, Message message) {
  if (*name == '/' || strstr(name, ".."))
    return fail(message, "%s: file '%s' lies outside the folder. Do not trust it.", folder, name);
  if (snprintf(path, 4096, "%s/%s", folder, name) >= 4096) return fail(message, "%s: the path is too long.", folder);
  return 0;
}

typedef struct {
  const unsigned char *at, *end;
  int bad;
} Reader;

static const void *take(Reader *reader, size_t count, size_t bytes) {
  if (bytes && count > (size_t)(reader->end - reader->at) / bytes) {
    reader->bad = 1;
    return NULL;
  }
  const void *found = reader->at;
  reader->at += count * bytes;
  return found;
}

static int64_t number(Reader *reader) {
  const int64_t *found = take(reader, 1, 8);
  return found ? *found : 0;
}

/* Returns a count that fits what is left of the file, at `bytes` each. */
static size_t count_of(Reader *reader, size_t bytes) {
  const int64_t found = number(reader);
  if (found >= 0 && (size_t)found <= (size_t)(reader->end - reader->at) / bytes) return (size_t)found;
  reader->bad = 1;
  return 0;
}

static const char *text(Reader *reader) {
  const size_t size = count_of(reader, 1);
  const char *found = take(reader, (size + 7) / 8, 8);
  if (found && size && !found[size - 1]) return found;
  reader->bad = 1;
  return "";
}

/* ---- TVM's libraries ------------------------------------------------------------------------------------------- */

static int load_tvm(const char *libraries, Message message) {
  static const char *const names[] = {"libtvm_ffi.so", "libtvm_runtime.so"};
  char path[4096];
  void *loaded[2];
  if (ffi) return 0;
  for (int n = 0; n < 2; ++n) {
    if (snprintf(path, sizeof path, "%s%s%s", libraries ? libraries : "", libraries ? "/" : "", names[n]) >=
        (int)sizeof path)
      return fail(message, "%s: the path is too long.", libraries);
    loaded[n] = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    if (!loaded[n])
      return fail(message, "TVM's runtime: expected %s, got: %s. Pass the folder lib/ of the package roller_runtime.",
                  path, dlerror());
  }
  *(void **)&hooks.take_error = dlsym(loaded[0], "TVMFFIErrorMoveFromRaised");
  *(void **)&hooks.drop = dlsym(loaded[0], "TVMFFIObjectDecRef");
  if (!hooks.take_error || !hooks.drop)
    return fail(message, "%s: expected TVM's C interface, found none of it. Use release 0.27 of TVM.", names[0]);
  ffi = loaded[0];
  return 0;
}

/* Copies the message of a TVM error, which follows its header and its kind, and releases the error. */
static int fail_with_tvm_error(Message message, const char *where, void *error) {
  if (!error) return fail(message, "%s: no reason was given.", where);
  const Text *reason = (const Text *)((const char *)error + 24) + 1;
  fail(message, "%s: %.*s", where, (int)(reason->size > 500 ? 500 : reason->size), reason->data);
  hooks.drop(error);
  return -1;
}

/* Loads a kernel's library and lets TVM connect it to its runtime. */
static int connect(const char *path, const char *where, Message message) {
  static const char name[] = "ffi.ModuleLoadFromFile";
  int (*get)(const Text *, void **), (*call)(void *, Argument *, int32_t, Argument *);
  void *function = NULL;
  *(void **)&get = dlsym(ffi, "TVMFFIFunctionGetGlobal");
  *(void **)&call = dlsym(ffi, "TVMFFIFunctionCall");
  const Text wanted = {name, sizeof name - 1};
  if (!get || !call || get(&wanted, &function) || !function)
    return fail(message, "TVM's runtime has no %s. Use release 0.27.", name);
  Argument argument = {RAW_STRING, 0, path}, result = {0, 0, NULL};
  if (!call(function, &argument, 1, &result))
    return 0; /* the library points to the result, so that nothing releases it */
  void *error = NULL;
  hooks.take_error(&error);
  return fail_with_tvm_error(message, where, error);
}

/* Loads a library of the folder after its SHA-256 was verified: a copy of exactly the verified bytes. */
static void *load_verified(const char *folder, const char *name, const unsigned char *digest, int is_kernel,
                           Message message) {
  char path[4096], copy[4096], own[DIGEST_BYTES];
  const char *temporary = getenv("TMPDIR");
  size_t size;
  void *loaded = NULL;
  if (path_of(path, folder, name, message)) return NULL;
  unsigned char *data = read_file(path, &size, message);
  if (!data) return NULL;
  sha256(data, size, (unsigned char *)own);
  if (memcmp(own, digest, DIGEST_BYTES)) {
    fail(message, "%s: checksum does not match; the file was altered or damaged. Save the model again.", path);
    free(data);
    return NULL;
  }
  if (snprintf(copy, sizeof copy - 16, "%s/roller-XXXXXX", temporary && *temporary ? temporary : "/tmp") >=
          (int)sizeof copy - 16 ||
      !mkdtemp(copy)) {
    fail(message, "%s: cannot make a temporary folder (%s). Set TMPDIR.", path, strerror(errno));
    free(data);
    return NULL;
  }
  const size_t length = strlen(copy);
  strcat(copy, "/kernel.so");
  const int file = open(copy, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  size_t at = 0;
  for (ssize_t put; file >= 0 && at < size; at += (size_t)put)
    if ((put = write(file, data + at, size - at)) <= 0) break;
  if (file < 0 || close(file) || at < size)
    fail(message, "%s: cannot write a temporary copy (%s). Set TMPDIR.", path, strerror(errno));
  else if (!is_kernel || !connect(copy, path, message)) {
    loaded = dlopen(copy, RTLD_NOW);
    if (!loaded) fail(message, "%s: cannot load it (%s). Compile the model on this machine.", path, dlerror());
  }
  unlink(copy);
  copy[length] = 0;
  rmdir(copy);
  free(data);
  return loaded;
}

/* ---- Opening ---------------------------------------------------------------------------------------------------- */

/* Returns whether a word is in a line of /proc/cpuinfo. */
static int has_feature(const char *line, const char *word) {
  const size_t size = strlen(word);
  if (!size) return 0;
  for (const char *at = line; (at = strstr(at, word)); at += size)
    if (at > line && (at[-1] == ' ' || at[-1] == '\t') && (at[size] == ' ' || at[size] == '\n' || !at[size])) return 1;
  return 0;
}

static int check_machine(Reader *reader, const char *folder, Message message) {
  char line[1 << 14] = "";
  struct utsname here;
  const size_t words = count_of(reader, 8);
  if (words != 2) return reader->bad = 1, 0;
  const char *system = text(reader), *architecture = text(reader);
  uname(&here);
  if (!reader->bad && (strcmp(system, "linux") || strcmp(architecture, here.machine)))
    return fail(message, "%s: saved for %s %s, this is linux %s. Compile the model here.", folder, system, architecture,
                here.machine);
  FILE *info = fopen("/proc/cpuinfo", "r");
  while (info && fgets(line, sizeof line, info))
    if (!strncmp(line, "flags", 5) || !strncmp(line, "Features", 8)) break;
  if (info) fclose(info);
  for (size_t left = count_of(reader, 8); left && !reader->bad; --left) {
    const char *feature = text(reader);
    if (!has_feature(line, feature))
      return fail(message, "%s: expected a processor with %s, got one without. Compile the model on this machine.",
                  folder, feature);
#if defined(__x86_64__) && defined(SYS_arch_prctl)
    /* Linux grants tile registers to processes that ask for them: ARCH_REQ_XCOMP_PERM for XTILEDATA. */
    if (!strcmp(feature, "amx_tile") && syscall(SYS_arch_prctl, 0x1023, 18))
      return fail(message,
                  "%s: expected the system's permission to use tile registers (AMX), got none. Compile the model on "
                  "this machine.",
                  folder);
#endif
  }
  return 0;
}

static const RollerTensor *read_ends(Reader *reader, RollerTensor *ends, size_t count) {
  for (size_t n = 0; n < count && !reader->bad; ++n) {
    RollerTensor *t = ends + n;
    t->name = text(reader), t->dtype = text(reader);
    t->type_code = number(reader), t->bits = number(reader), t->bytes = number(reader);
    t->rank = (int64_t)count_of(reader, 8);
    t->shape = take(reader, (size_t)t->rank, 8);
    if (t->bytes < 0 || t->bits < 0) reader->bad = 1;
  }
  return ends;
}

static int map_weights(Shared *shared, const char *folder, const char *name, Message message) {
  char path[4096];
  struct stat info;
  if (path_of(path, folder, name, message)) return -1;
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0 || fstat(file, &info) || (size_t)info.st_size != shared->weight_bytes) {
    if (file >= 0) close(file);
    return fail(message, "%s: expected a file of %zu bytes. Copy the folder again.", path, shared->weight_bytes);
  }
  if (shared->weight_bytes) {
    void *found = mmap(NULL, shared->weight_bytes, PROT_READ, MAP_PRIVATE, file, 0);
    if (found != MAP_FAILED) shared->weights = found;
  }
  close(file);
  if (shared->weight_bytes && !shared->weights)
    return fail(message, "%s: cannot map it (%s). Raise the limit of virtual memory.", path, strerror(errno));
  return 0;
}

/* Returns whether a step refers to tensors and lanes that exist. */
static int is_step_valid(const Step *s, int64_t tensors, int64_t lanes) {
  if (s->first < 0 || s->count < 0) return 0;
  if (s->kind == COPY) return s->first < tensors && s->count < tensors && s->rows >= 0 && s->row_bytes >= 0;
  if (s->kind == GATHER) return s->first <= tensors - 3;
  if (s->kind == TOGETHER) return s->first <= lanes && s->count <= lanes - s->first;
  return s->kind == CALL && s->first <= tensors && s->count <= tensors - s->first;
}

static int load_kernels(Shared *shared, Reader *reader, const char *folder, void *launch, Message message) {
  const size_t count = count_of(reader, DIGEST_BYTES);
  void **functions = calloc(count + 1, sizeof *functions);
  int failed = functions == NULL;
  for (size_t n = 0; n < count && !failed && !reader->bad; ++n) {
    const char *name = text(reader);
    const unsigned char *digest = take(reader, 1, DIGEST_BYTES);
    const char *symbol = text(reader);
    if (reader->bad) break;
    void *library = load_verified(folder, name, digest, 1, message);
    void **pointer = library ? dlsym(library, "__TVMBackendParallelLaunch") : NULL;
    if (pointer) *pointer = launch; /* absent from kernels without parallel loops */
    functions[n] = library ? dlsym(library, symbol) : NULL;
    failed = !functions[n];
    if (library && failed)
      fail(message, "%s/%s: expected the function %s, found none. Save the model again.", folder, name, symbol);
  }
  if (!failed) {
    const size_t steps = count_of(reader, sizeof(Step));
    const Step *rows = take(reader, steps, sizeof(Step));
    const size_t lanes = count_of(reader, 16);
    shared->lanes = take(reader, lanes, 16);
    shared->dimension_count = (int64_t)count_of(reader, 8);
    shared->dimensions = take(reader, (size_t)shared->dimension_count, 8);
    const size_t cuts = count_of(reader, 8);
    shared->cuts = take(reader, cuts, 8);
    shared->tensor_count = (int64_t)count_of(reader, sizeof(TensorRow));
    shared->rows = take(reader, (size_t)shared->tensor_count, sizeof(TensorRow));
    shared->step_count = (int64_t)steps;
    shared->steps = reader->bad ? NULL : malloc((steps + 1) * sizeof(Step));
    for (size_t n = 0; shared->steps && n < steps; ++n) {
      Step *s = shared->steps + n;
      *s = rows[n];
      const uint64_t cut = (uint64_t)(uintptr_t)s->cuts, function = (uint64_t)(uintptr_t)s->function;
      if (cut > cuts || s->cut_count < 0 || (uint64_t)s->cut_count > cuts - cut ||
          (s->kind == CALL && function >= count))
        reader->bad = 1;
      s->cuts = shared->cuts + (cut > cuts ? 0 : cut);
      s->function = s->kind == CALL && function < count ? functions[function] : NULL;
      if (!is_step_valid(s, shared->tensor_count, (int64_t)lanes)) reader->bad = 1;
    }
    for (size_t n = 0; !reader->bad && n < lanes; ++n)
      if (shared->lanes[2 * n] < 0 || shared->lanes[2 * n] > shared->lanes[2 * n + 1] ||
          shared->lanes[2 * n + 1] > shared->step_count)
        reader->bad = 1;
    failed = !reader->bad && !shared->steps;
  }
  free(functions);
  return failed ? -1 : 0;
}

static void drop(Shared *shared) {
  pthread_mutex_lock(&lock);
  const int left = --shared->users;
  pthread_mutex_unlock(&lock);
  if (left) return;
  if (shared->weights) munmap(shared->weights, shared->weight_bytes);
  free(shared->program), free(shared->ends), free(shared->steps), free(shared);
}

static int open_program(Shared *shared, const char *folder, const char *libraries, Message message) {
  char path[4096];
  unsigned char digest[DIGEST_BYTES];
  size_t size;
  if (path_of(path, folder, "native.bin", message)) return -1;
  if (access(path, R_OK)) {
    char other[4096];
    if (path_of(other, folder, "model.json", message)) return -1;
    if (access(other, R_OK))
      return fail(message,
                  "%s: expected the folder of a saved model, found no model.json. Pass the folder that save wrote.",
                  folder);
    if (path_of(other, folder, "ranges.json", message)) return -1;
    if (!access(other, R_OK))
      return fail(message, "%s: the model has ranges of sizes. Compile it for fixed sizes, or run it in Python.",
                  folder);
    return fail(message,
                "%s: expected the file native.bin, found none: 'only_in_python' in model.json names a step that needs "
                "Python, or the file is missing. Run the model in Python, or copy the folder again.",
                folder);
  }
  shared->program = read_file(path, &size, message);
  if (!shared->program) return -1;
  const int64_t *head = (const int64_t *)(shared->program + 8);
  if (size < HEAD_BYTES || memcmp(shared->program, "ROLLERNB", 8))
    return fail(message, "%s: expected the tables of a saved model, got another file. Save the model again.", path);
  if (head[0] != VERSION)
    return fail(message, "%s: expected version %d, got %lld. Use roller_runtime.c of the release that saved it.", path,
                VERSION, (long long)head[0]);
  if (head[1] != (int64_t)(size - HEAD_BYTES))
    return fail(message, "%s: the file is incomplete. Copy the folder again.", path);
  sha256(shared->program + HEAD_BYTES, size - HEAD_BYTES, digest);
  if (memcmp(digest, shared->program + 24, DIGEST_BYTES))
    return fail(message, "%s: checksum does not match; the file was altered or damaged. Save the model again.", path);
  Reader reader = {shared->program + HEAD_BYTES, shared->program + size, 0};
  if (check_machine(&reader, folder, message)) return -1;
  shared->name = text(&reader);
  const char *runner = text(&reader);
  const unsigned char *runner_digest = take(&reader, 1, DIGEST_BYTES);
  const char *weights = text(&reader);
  shared->weight_bytes = (size_t)number(&reader), shared->arena_bytes = number(&reader),
  shared->threads = number(&reader);
  shared->begin = number(&reader), shared->end = number(&reader);
  Reader ahead = reader; /* inputs are counted before memory is allocated for both */
  shared->input_count = count_of(&ahead, 8);
  shared->ends = calloc(shared->input_count + 1, sizeof(RollerTensor));
  if (!shared->ends) return fail(message, "%s: out of memory.", folder);
  read_ends(&ahead, shared->ends, shared->input_count);
  shared->output_count = count_of(&ahead, 8);
  RollerTensor *both = realloc(shared->ends, (shared->input_count + shared->output_count + 1) * sizeof(RollerTensor));
  if (!both) return fail(message, "%s: out of memory.", folder);
  shared->ends = both;
  read_ends(&ahead, both + shared->input_count, shared->output_count);
  reader = ahead;
  if (reader.bad) return fail(message, "%s: a field is malformed. Save the model again.", path);
  if (load_tvm(libraries, message) || map_weights(shared, folder, weights, message)) return -1;
  void *library = load_verified(folder, runner, runner_digest, 0, message);
  if (!library) return -1;
  *(void **)&shared->point = dlsym(library, "roller_point");
  *(void **)&shared->run = dlsym(library, "roller_run");
  void *launch = dlsym(library, "roller_launch");
  if (!shared->point || !shared->run || !launch)
    return fail(message, "%s/%s: expected the native runner, found another library. Save the model again.", folder,
                runner);
  if (load_kernels(shared, &reader, folder, launch, message)) return -1;
  if (reader.bad || shared->begin < 0 || shared->end < shared->begin || shared->end > shared->step_count ||
      shared->arena_bytes < 0)
    return fail(message, "%s: a table is malformed. Save the model again.", path);
  return 0;
}

static void *allocate_arena(int64_t bytes) {
  void *found = NULL;
  const size_t align = bytes >= HUGE_BYTES ? HUGE_BYTES : LINE_BYTES;
  if (posix_memalign(&found, align, (size_t)(bytes ? bytes : 1))) return NULL;
#ifdef MADV_HUGEPAGE
  if (bytes >= HUGE_BYTES) madvise(found, (size_t)bytes / HUGE_BYTES * HUGE_BYTES, MADV_HUGEPAGE);
#endif
  return found;
}

static RollerModel *make_model(Shared *shared, int64_t threads, Message message) {
  const size_t tensors = (size_t)shared->tensor_count, ends = shared->input_count + shared->output_count;
  RollerModel *model = calloc(1, sizeof *model);
  if (model) {
    model->shared = shared;
    model->arena = allocate_arena(shared->arena_bytes);
    model->tensors = calloc(tensors + 1, sizeof(Tensor));
    model->arguments = calloc(tensors + 1, sizeof(Argument));
    model->patches = calloc(3 * tensors + 1, sizeof(int64_t));
    model->arrays = calloc(ends + 1, sizeof(void *));
  }
  if (!model || !model->arena || !model->tensors || !model->arguments || !model->patches || !model->arrays) {
    fail(message, "%s: out of memory.", shared->name);
    roller_close(model);
    if (!model) drop(shared);
    return NULL;
  }
  int64_t patches = 0;
  for (size_t n = 0; n < tensors; ++n) {
    const TensorRow *row = shared->rows + n;
    int64_t limit = INT64_MAX;
    if (row->place == ARENA) limit = shared->arena_bytes;
    if (row->place == CONSTANT) limit = (int64_t)shared->weight_bytes;
    if (row->rank < 0 || row->first < 0 || row->first > shared->dimension_count ||
        row->rank > shared->dimension_count - row->first || row->place < NOWHERE || row->place > CALLER ||
        row->offset < 0 || row->offset > limit ||
        (row->place == CALLER && (row->array < 0 || (size_t)row->array >= ends))) {
      fail(message, "%s: a table is malformed. Save the model again.", shared->name);
      roller_close(model);
      return NULL;
    }
    char *base = row->place == CONSTANT ? (char *)shared->weights : row->place == CALLER ? NULL : model->arena;
    Tensor tensor = {
        base ? base + row->offset : NULL, HOST, 0, (int32_t)row->rank, (uint8_t)row->code, (uint8_t)row->bits, 1,
        shared->dimensions + row->first,  NULL, 0};
    model->tensors[n] = tensor;
    model->arguments[n].type_index = TENSOR_POINTER, model->arguments[n].value = model->tensors + n;
    if (row->place != CALLER) continue;
    int64_t *patch = model->patches + 3 * patches++;
    patch[0] = (int64_t)n, patch[1] = row->array, patch[2] = row->offset;
  }
  Frame frame = {shared->steps,
                 shared->lanes,
                 model->arguments,
                 model->tensors,
                 model->patches,
                 patches,
                 model->arrays,
                 NULL,
                 &hooks,
                 1,
                 NULL,
                 -1};
  model->frame = frame;
  roller_set_threads(model, (int)threads);
  return model;
}

RollerModel *roller_open(const char *folder, const char *libraries, char *error, size_t error_bytes) {
  const Message message = {error, error_bytes};
  Shared *shared = calloc(1, sizeof *shared);
  if (error && error_bytes) *error = 0;
  if (!folder || !shared) {
    fail(message, folder ? "out of memory." : "folder: expected a path, got NULL.");
    free(shared);
    return NULL;
  }
  pthread_mutex_lock(&lock);
  shared->users = 1;
  const int failed = open_program(shared, folder, libraries, message);
  pthread_mutex_unlock(&lock);
  if (failed) {
    drop(shared);
    return NULL;
  }
  return make_model(shared, shared->threads, message);
}

RollerModel *roller_clone(const RollerModel *model, char *error, size_t error_bytes) {
  const Message message = {error, error_bytes};
  pthread_mutex_lock(&lock);
  ++model->shared->users;
  pthread_mutex_unlock(&lock);
  if (error && error_bytes) *error = 0;
  return make_model(model->shared, model->frame.threads, message);
}

size_t roller_input_count(const RollerModel *model) { return model->shared->input_count; }
size_t roller_output_count(const RollerModel *model) { return model->shared->output_count; }

const RollerTensor *roller_input(const RollerModel *model, size_t number) {
  return number < model->shared->input_count ? model->shared->ends + number : NULL;
}

const RollerTensor *roller_output(const RollerModel *model, size_t number) {
  return number < model->shared->output_count ? model->shared->ends + model->shared->input_count + number : NULL;
}

int roller_threads(const RollerModel *model) { return (int)model->frame.threads; }

void roller_set_threads(RollerModel *model, int threads) {
  cpu_set_t available;
  const int most = sched_getaffinity(0, sizeof available, &available) ? threads : CPU_COUNT(&available);
  threads = threads < most ? threads : most;
  model->frame.threads =
      threads < 1 || model->shared->threads <= 1 ? 1 : threads; /* 1: the model's calls wake no threads */
}

int roller_call(RollerModel *model, const void *const *inputs, void *const *outputs, char *error, size_t error_bytes) {
  const Message message = {error, error_bytes};
  const Shared *shared = model->shared;
  Frame *frame = &model->frame;
  for (size_t n = 0; n < shared->input_count + shared->output_count; ++n) {
    const void *array = n < shared->input_count ? inputs[n] : outputs[n - shared->input_count];
    if (!array && shared->ends[n].bytes)
      return fail(message, "%s: '%s': expected an array, got NULL. Pass one for each input and output.", shared->name,
                  shared->ends[n].name);
    model->arrays[n] = array;
  }
  shared->point(frame);
  if (!shared->run(frame, shared->begin, shared->end)) return 0;
  if (frame->failed_step >= 0 && shared->steps[frame->failed_step].kind == GATHER)
    return fail(message, "%s: an index lies outside of the data that it selects from. Check the inputs of the model.",
                shared->name);
  return fail_with_tvm_error(message, shared->name, frame->error);
}

void roller_close(RollerModel *model) {
  if (!model) return;
  free(model->arena), free(model->tensors), free(model->arguments), free(model->patches), free(model->arrays);
  drop(model->shared);
  free(model);
}
