/* First touch of memory.
 *
 * Measures: execution.fault_s, the time of the first touch of a page, including the time to release the page: a block
 *   is mapped, one byte of every page is written, and the block is unmapped.
 * Spoiled by: large pages, which are handed out for many touches at once (what is found is then the share of one).
 * Proof: pages that were touched before take less than a tenth.
 */
#include <sys/mman.h>

#include "probe.h"

#define PAGE_BYTES 4096

static void touch(volatile char *block, long bytes) {
    for (long i = 0; i < bytes; i += PAGE_BYTES) block[i] = 1;
}

KERNEL(pages_fresh) {
    (void)data;
    for (long r = 0; r < repeat; r++) {
        char *block = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (block == MAP_FAILED) return;
        touch(block, bytes);
        munmap(block, bytes);
    }
}

KERNEL(pages_known) {
    for (long r = 0; r < repeat; r++) touch(data, bytes);
}
