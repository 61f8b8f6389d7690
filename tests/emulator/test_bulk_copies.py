"""mbarrier and cp.async.bulk: a ring that one thread fills and all threads read, and its mistakes."""

import numpy as np
import pytest

from roller.emulator import ORDERS, emulate
from roller.errors import EmulationError
from tests.emulator.snippets import artifact, kernel

STEPS, STAGES, THREADS = 7, 3, 64
HEAD = """typedef unsigned int uint32_t;
__forceinline__ __device__ void init(uint32_t barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(barrier), "r"(count) : "memory");
}
__forceinline__ __device__ void expect(uint32_t barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(barrier), "r"(bytes) : "memory");
}
__forceinline__ __device__ void arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(barrier) : "memory");
}
__forceinline__ __device__ void wait(uint32_t barrier, int parity) {
  uint32_t done = 0;
  while (!done)
    asm volatile("{.reg .pred p;\\n mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\\n selp.b32 %0, 1, 0, p;}"
                 : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
}
__forceinline__ __device__ void copy(uint32_t to, const void* from, int bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               :: "r"(to), "l"(from), "r"(bytes), "r"(barrier) : "memory");
}
"""
BODY = f"""
  __shared__ alignas(128) float ring_ptr[{STAGES * THREADS}];
  __shared__ alignas(8) unsigned long long full_ptr[{STAGES}];
  __shared__ alignas(8) unsigned long long empty_ptr[{STAGES}];
  uint32_t ring = __cvta_generic_to_shared(ring_ptr), full = __cvta_generic_to_shared(full_ptr);
  uint32_t empty = __cvta_generic_to_shared(empty_ptr);
  if (threadIdx.x == 0) {{
    for (int s = 0; s < {STAGES}; ++s) {{ init(full + 8 * s, 1); init(empty + 8 * s, {THREADS}); }}
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }}
  __syncthreads();
  if (threadIdx.x == {THREADS}) {{
    for (int k = 0; k < {STEPS}; ++k) {{
      int s = k % {STAGES}, round = k / {STAGES};
      wait(empty + 8 * s, round + 1 & 1);
      expect(full + 8 * s, {4 * THREADS});
      copy(ring + {4 * THREADS} * s, X_ptr + k * {THREADS}, {4 * THREADS}, full + 8 * s);
    }}
  }} else if (threadIdx.x < {THREADS}) {{
    float sum = 0;
    for (int k = 0; k < {STEPS}; ++k) {{
      int s = k % {STAGES}, round = k / {STAGES};
      wait(full + 8 * s, round & 1);
      sum += ring_ptr[s * {THREADS} + ({THREADS - 1} - threadIdx.x)] * (k + 1);
      arrive(empty + 8 * s);
    }}
    Y_ptr[threadIdx.x] = sum;
  }}"""


def run(built, order, old="", new=""):
    body = BODY.replace(old, new) if old else BODY
    assert body != BODY or not old
    made = artifact(
        kernel("float* X_ptr, float* Y_ptr", body, HEAD), [("X", STEPS * THREADS, "float32")],
        [("Y", THREADS, "float32")], block=THREADS + 32, arch="sm_90",
    )  # fmt: skip
    x = np.arange(STEPS * THREADS, dtype=np.float32)
    expected = (x.reshape(STEPS, THREADS)[:, ::-1] * np.arange(1, STEPS + 1)[:, None]).sum(0)
    return emulate(made, [x], order=order, cache_dir=built)[0], expected


@pytest.mark.parametrize("order", ORDERS)
def test_one_thread_fills_a_ring_that_all_read(built, order):
    got, expected = run(built, order)
    np.testing.assert_array_equal(got, expected)


WRONG = {
    "nobody waits for the copies": ("wait(full + 8 * s, round & 1);", ""),
    "nobody waits for the readers": ("wait(empty + 8 * s, round + 1 & 1);", ""),
    "too few bytes are expected": (f"expect(full + 8 * s, {4 * THREADS})", "expect(full + 8 * s, 0)"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_missing_wait_shows_in_some_order(built, name):
    wrong = 0
    for order in ORDERS:
        try:
            got, expected = run(built, order, *WRONG[name])
        except EmulationError:
            wrong += 1
            continue
        wrong += not np.array_equal(got, expected)
    assert wrong


REPORTED = {
    "deadlock: .*mbarrier that never completes": ("wait(full + 8 * s, round & 1)", "wait(full + 8 * s, round + 1 & 1)"),
    "misuse: .*no mbarrier.init": ("init(full + 8 * s, 1);", ""),
    "misuse: .*a multiple of 16 bytes, got 24": (f"{THREADS}, {4 * THREADS}, full", f"{THREADS}, 24, full"),
    "misaligned: .*shared array 'ring_ptr' needs a multiple of 16": ("copy(ring +", "copy(ring + 4 +"),
}


@pytest.mark.parametrize("message", REPORTED)
def test_mistakes_are_named(built, message):
    with pytest.raises(EmulationError, match=message):
        for order in ORDERS:
            run(built, order, *REPORTED[message])
