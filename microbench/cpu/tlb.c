/* First-level TLB for data.
 *
 * Measures: memory_layers.l1.tlb_entries, the number of pages that a pointer chase can touch in turn before its latency
 *   rises, and .tlb_miss_s, the amount by which it rises. The chase reads one line per small page: so few lines that
 *   all stay in L1.
 * Spoiled by: large pages (refused for this block), lines that meet in the same set of L1 (each page uses another line).
 * Proof: the same number of lines inside few pages has the latency of L1 (latency.c at 16 KiB), so only pages differ.
 */
#include "chase.h"

static long page(long n, long pitch) { return n * pitch + n % (pitch / 64 - 1) * 64; }

/* `repeat` pages of `bytes` each. */
KERNEL(tlb_fill) { chase_link(data, repeat, page, bytes); }
