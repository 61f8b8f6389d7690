"""Device functions for warp groups: wgmma of sm_90a, its fences, and descriptors of tiles in the scratchpad."""

from __future__ import annotations

from roller.core.matrix_instruction_fragment import Fragment
from roller.errors import BuildError
from roller.templates.gpu.emit.device_functions import FUNCTIONS, register_device_function

#: Operand dtypes as PTX spells them.
_KINDS = {"float16": "f16", "bfloat16": "bf16"}
#: Number of operands of an assembly statement per source line.
_PER_LINE = 8

# Data written by generic instructions and cp.async is visible to wgmma only after this fence of the writing thread.
register_device_function("roller_publish", """void roller_publish() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}""")  # fmt: skip
register_device_function("roller_group_fence", """void roller_group_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}""")  # fmt: skip
register_device_function("roller_group_commit", """void roller_group_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}""")  # fmt: skip
register_device_function("roller_group_wait", """template <int N> void roller_group_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(N) : "memory");
}""")  # fmt: skip
# The compiler considers accumulators ready as soon as a product is issued: nothing may move across the wait.
register_device_function("roller_group_hold", """template <int N> void roller_group_hold(float* sum) {
  #pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(sum[i]) :: "memory");
}""")  # fmt: skip
register_device_function("roller_group_tile", """unsigned long long roller_group_tile(
    const void* start, int leading, int stride, int swizzle) {
  unsigned place = __shfl_sync(0xffffffffu, (roller_shared_address(start) & 0x3ffff) >> 4, 0);  // the same in all lanes
  return (unsigned long long)place | (unsigned long long)(leading >> 4) << 16
         | (unsigned long long)(stride >> 4) << 32 | (unsigned long long)swizzle << 62;
}""")  # fmt: skip
# Four pairs in each of four neighbouring lanes: pair b of lane t changes places with pair t of lane b.
register_device_function("roller_quad_exchange", """void roller_quad_exchange(float* pairs) {
  #pragma unroll
  for (int way = 1; way < 4; way *= 2) {
    bool high = threadIdx.x & way;
    #pragma unroll
    for (int i = 0; i < 4; ++i) {
      int low = (i >> 1) * (4 / way) + (i & 1);
      float sent = high ? pairs[low] : pairs[low + 2 * way];
      float got = __shfl_xor_sync(0xffffffffu, sent, way);
      if (high) pairs[low] = got; else pairs[low + 2 * way] = got;
    }
  }
}""")  # fmt: skip


def define_wgmma_function(f: Fragment, transposed_a: bool, transposed_b: bool) -> str:
    """Define the function that adds a product to a warp group's sums, and return its name."""
    if f.operand not in _KINDS or (f.m, f.k, f.accumulator) != (64, 16, "float32") or f.n % 8 or not 8 <= f.n <= 256:
        raise BuildError(f"{f.name}: expected 64 x n x 16 of {list(_KINDS)} with float32 sums. Correct the fragment.")
    # Arguments: a thread's sums, descriptors of A and B; ``transposed`` operands are contiguous along m (n) instead of
    # k.
    kind, n, count = _KINDS[f.operand], f.n, f.n // 2
    name = f"roller_group_product_{n}_{kind}_{int(transposed_a)}{int(transposed_b)}"
    if name not in FUNCTIONS:
        sums = [f"%{i}" for i in range(count)]
        registers = _break_into_lines(sums, '"\n    "')
        operands = _break_into_lines([f'"+f"(sum[{i}])' for i in range(count)], "\n      ")
        register_device_function(name, f"""void {name}(float* sum, unsigned long long a, unsigned long long b) {{
  asm volatile("wgmma.mma_async.sync.aligned.m64n{n}k16.f32.{kind}.{kind} {{"
    "{registers}"
    "}}, %{count}, %{count + 1}, 1, 1, 1, {int(transposed_a)}, {int(transposed_b)};"
    : {operands}
    : "l"(a), "l"(b) : "memory");
}}""")  # fmt: skip
    return name


def _break_into_lines(items: list[str], newline: str) -> str:
    rows = [", ".join(items[i : i + _PER_LINE]) for i in range(0, len(items), _PER_LINE)]
    return f",{newline}".join(rows)
