"""Reading PTX: loops are found, classes and widths are right."""

from __future__ import annotations

import pytest

from benchmarks import ptx
from roller.backends.cuda import toolchain
from roller.errors import BuildError
from tests.offenders import every

_NESTED = """
.visible .entry one(.param .u64 p)
{
 .reg .pred %p<3>;
 ld.param.u64 %rd1, [p];
$L__BB0_1:
 cp.async.ca.shared.global [%r1], [%rd1], 4, %r9;
 cp.async.commit_group;
 bar.sync 0;
$L__BB0_2:
 ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r2,%r3,%r4,%r5}, [%r1];
 mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f1,%f2,%f3,%f4}, {%r2,%r3,%r4,%r5}, {%r6,%r7}, {%f1,%f2,%f3,%f4};
 @%p1 bra $L__BB0_2;
 @!%p2 bra $L__BB0_1;
 st.global.v2.f32 [%rd1], {%f1, %f2};
 ret;
}
.visible .entry two()
{
 ld.local.f32 %f1, [%r1];
 ret;
}
"""


def test_loops_are_found_with_what_is_in_them():
    one = ptx.kernels(_NESTED)["one"]
    outer, inner = one.loops
    assert (outer.label, outer.inner, inner.label, inner.inner) == ("$L__BB0_1", False, "$L__BB0_2", True)
    assert one.main_loop == inner
    assert inner.counts == {"ldmatrix": 1, "matrix": 1, "branch": 1}
    assert outer.counts["async_copy_4"] == 1
    assert outer.counts["async_wait"] == 1
    assert outer.counts["barrier"] == 1
    assert one.counts["global_store_64"] == 1


def test_a_kernel_without_loops_has_no_main_loop():
    two = ptx.kernels(_NESTED)["two"]
    assert two.main_loop is None
    assert two.counts["local_load_32"] == 1


@every(
    ("text", "expected"),
    [
        ("ld.global.nc.v4.f32 {%f1,%f2,%f3,%f4}, [%rd1];", "global_load_128"),
        ("ld.global.v4.b32 {%r1,%r2,%r3,%r4}, [%rd1];", "global_load_128"),
        ("ld.global.v2.u64 {%rd1,%rd2}, [%rd1];", "global_load_128"),
        ("ld.global.nc.u16 %rs1, [%rd1];", "global_load_16"),
        ("st.shared.f32 [%r1], %f1;", "shared_store_32"),
        ("@%p1 st.local.u8 [%r1], %rs1;", "local_store_8"),
        ("fma.rn.f16x2 %r1, %r2, %r3, %r4;", "fma"),
        ("mad.lo.s32 %r1, %r2, %r3, %r4;", "integer"),
        ("max.f32 %f1, %f2, %f3;", "float"),
        ("max.s32 %r1, %r2, %r3;", "integer"),
        ("div.rn.f32 %f1, %f2, %f3;", "special"),
        ("wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {%f1}, %rd1, %rd2, p, 1, 1, 0, 0;", "matrix"),
        ("cp.async.wait_group 1;", "async_wait"),
        ("shfl.sync.down.b32 %r1, %r2, 16, 31, -1;", "shuffle"),
        ("atom.global.add.f32 %f1, [%rd1], %f2;", "global_atomic_32"),
    ],
)
def test_classes_and_widths(text, expected):
    assert ptx.instruction_class(text) == expected


def test_text_without_a_kernel_is_refused():
    with pytest.raises(BuildError, match="entry"):
        ptx.kernels("nothing here")


@pytest.mark.skipif(toolchain.available() is not None, reason="needs the CUDA wheels")
def test_a_compiled_loop_is_counted():
    source = """
extern "C" __global__ void k(const float4* __restrict__ x, float* __restrict__ y, int n) {
  float s = 0.0f;
  #pragma unroll 1
  for (int i = 0; i < n; ++i) { float4 v = x[i]; s = fmaf(v.x, v.y, s); s = fmaf(v.z, v.w, s); }
  y[threadIdx.x] = s;
}"""
    found = ptx.kernels(toolchain.compile_to_ptx(source, "sm_80"))["k"]
    loop = found.main_loop
    assert loop is not None
    assert (loop.counts["global_load_128"], loop.counts["fma"]) == (1, 2)
    assert found.counts["global_store_32"] == 1
