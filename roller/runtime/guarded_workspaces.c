/* Workspaces of kernels between protected pages; see guarded_workspaces.py.

   The functions have the signatures of TVMBackendAllocWorkspace and TVMBackendFreeWorkspace. An access to a
   protected page ends the process with SIGSEGV, and a change of unused bytes in a workspace's pages with SIGABRT. */
#define _DEFAULT_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { ALIGNMENT = 64, MARK = 0xA5 }; /* of workspaces, in bytes; value of unused bytes in their pages */

struct workspace {
  struct workspace *next;
  unsigned char *block, *inside, *data;
  size_t block_bytes, inside_bytes, data_bytes;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct workspace *all;

int roller_workspaces_end_at_page; /* whether workspaces end at a protected page, or begin after one */

static void check_unused_bytes(const struct workspace *w) {
  for (const unsigned char *at = w->inside; at < w->inside + w->inside_bytes; ++at) {
    if (at == w->data) at += w->data_bytes;
    if (at < w->inside + w->inside_bytes && *at != MARK) abort();
  }
}

void *roller_allocate_workspace(int device_type, int device_id, uint64_t bytes, int code, int bits) {
  (void)device_type, (void)device_id, (void)code, (void)bits;
  size_t page = (size_t)sysconf(_SC_PAGESIZE), inside = ((size_t)bytes + page - 1) / page * page;
  struct workspace *w = malloc(sizeof *w);
  if (!w) return NULL;
  w->block_bytes = inside + 2 * page, w->inside_bytes = inside, w->data_bytes = (size_t)bytes;
  w->block = mmap(NULL, w->block_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (w->block == MAP_FAILED || (inside && mprotect(w->block + page, inside, PROT_READ | PROT_WRITE))) {
    free(w);
    return NULL;
  }
  w->inside = w->block + page;
  w->data = w->inside + (roller_workspaces_end_at_page ? (inside - (size_t)bytes) / ALIGNMENT * ALIGNMENT : 0);
  if (w->data > w->inside) memset(w->inside, MARK, (size_t)(w->data - w->inside));
  unsigned char *end = w->data + bytes;
  memset(end, MARK, (size_t)(w->inside + inside - end));
  pthread_mutex_lock(&lock);
  w->next = all, all = w;
  pthread_mutex_unlock(&lock);
  return w->data;
}

int roller_free_workspace(int device_type, int device_id, void *data) {
  (void)device_type, (void)device_id;
  pthread_mutex_lock(&lock);
  struct workspace **at = &all, *w;
  while (*at && (*at)->data != data) at = &(*at)->next;
  if ((w = *at)) *at = w->next;
  pthread_mutex_unlock(&lock);
  if (!w) abort();
  check_unused_bytes(w);
  munmap(w->block, w->block_bytes);
  free(w);
  return 0;
}
