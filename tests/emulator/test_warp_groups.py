"""wgmma: descriptors by the canonical layouts, products in flight, and a whole matrix product with its mistakes."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from roller import ops
from roller.artifact import Launch
from roller.backends.cuda import toolchain
from roller.emulator import ORDERS, emulate, prove
from roller.errors import EmulationError
from tests.emulator.snippets import artifact, kernel

RNG = np.random.default_rng(11)
#: Bits of the descriptor's swizzle field, and 16-byte units of a row of the pattern, per swizzle (bytes).
MODES = {0: (0, 1), 32: (3, 2), 64: (2, 4), 128: (1, 8)}
IMAGE_BYTES = 16384


def layout(mode, transposed, lead, stride, row, k, start=0):
    """Byte of element ``(row, k)``: CUTLASS's canonical layouts in units of 16 bytes, then the swizzle of addresses."""
    width = MODES[mode][1]
    if transposed:  # ((T, width, m), (8, k)) : ((1, T, LBO), (width T, SBO)); without swizzle the offsets change places
        outer, inner = (lead, stride) if mode else (stride, lead)
        unit = row // 8 % width + row // (8 * width) * outer // 16 + k % 8 * width + k // 8 * inner // 16
        byte = 16 * unit + row % 8 * 2
    else:  # ((8, n), 2) : ((width, SBO), 1), or LBO instead of 1 without swizzle
        unit = row % 8 * width + row // 8 * stride // 16 + k // 8 * (1 if mode else lead // 16)
        byte = 16 * unit + k % 8 * 2
    byte += start
    return byte ^ (byte >> 7 & (width - 1)) << 4


def offsets(mode, transposed, rows):
    """Leading and stride offsets (bytes) of a dense image of ``rows`` x 16 elements."""
    row_bytes = 16 * MODES[mode][1]
    atom = 8 * row_bytes
    if transposed and mode:
        return 2 * atom, atom  # atoms of one group of rows lie along k first
    return (128, 256) if mode == 0 else (16, atom)


def image(matrix, mode, transposed):
    lead, stride = offsets(mode, transposed, len(matrix))
    out = np.full(IMAGE_BYTES // 2, np.nan, matrix.dtype)
    for row in range(matrix.shape[0]):
        for k in range(16):
            out[layout(mode, transposed, lead, stride, row, k) // 2] = matrix[row, k]
    return out, (lead, stride)


def product(n, mode, ta, tb, offsets_a, offsets_b, change=lambda s: s):
    r = n // 2
    describe = lambda start, o: (  # noqa: E731
        f"(uint64_t)({start}) >> 4 | {o[0] // 16}ull << 16 | {o[1] // 16}ull << 32 | {MODES[mode][0]}ull << 62"
    )
    body = f"""
    __shared__ alignas(1024) half a_ptr[{IMAGE_BYTES // 2}];
    __shared__ alignas(1024) half b_ptr[{IMAGE_BYTES // 2}];
    float d_ptr[{r}];
    for (int i = threadIdx.x; i < {IMAGE_BYTES // 2}; i += 128) a_ptr[i] = A_ptr[i], b_ptr[i] = B_ptr[i];
    for (int i = 0; i < {r}; ++i) d_ptr[i] = 1.0f;
    asm volatile("fence.proxy.async;" ::: "memory");
    __syncthreads();
    uint64_t a = {describe("__cvta_generic_to_shared(a_ptr)", offsets_a)};
    uint64_t b = {describe("__cvta_generic_to_shared(b_ptr)", offsets_b)};
    asm volatile("wgmma.fence.sync.aligned;");
    asm volatile("{{.reg .pred p;\\n setp.ne.b32 p, %{r + 2}, 0;\\n"
      "wgmma.mma_async.sync.aligned.m64n{n}k16.f32.f16.f16 {{{", ".join(f"%{i}" for i in range(r))}}}, %{r}, %{r + 1},"
      "p, 1, -1, {int(ta)}, {int(tb)};}}"
      : {", ".join(f'"+f"(d_ptr[{i}])' for i in range(r))} : "l"(a), "l"(b), "r"(1));
    asm volatile("wgmma.commit_group.sync.aligned;");
    asm volatile("wgmma.wait_group.sync.aligned 0;");
    for (int i = 0; i < {r}; ++i) D_ptr[threadIdx.x * {r} + i] = d_ptr[i];"""
    return artifact(
        kernel("half* A_ptr, half* B_ptr, float* D_ptr", change(body), "#include <cuda_fp16.h>"),
        [("A", IMAGE_BYTES // 2, "float16"), ("B", IMAGE_BYTES // 2, "float16")], [("D", 64 * n, "float32")],
        block=128, arch="sm_90a",
    )  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("ta", "tb"), [(False, False), (True, True), (False, True)])
def test_descriptors_by_the_canonical_layouts(built, mode, ta, tb):
    n = 136 if not tb and mode == 0 else 128
    a, b = (RNG.integers(-8, 9, (rows, 16)).astype(np.float16) for rows in (64, n))
    (ia, oa), (ib, ob) = image(a, mode, ta), image(b, mode, tb)
    expected = 1 - a.astype("f8") @ b.astype("f8").T
    for order in ORDERS:
        d = emulate(product(n, mode, ta, tb, oa, ob), [ia, ib], order=order, cache_dir=built)[0].reshape(128, n // 2)
        for thread in range(128):
            for i in range(n // 2):
                row = 16 * (thread // 32) + thread % 32 // 4 + 8 * (i // 2 % 2)
                assert d[thread, i] == expected[row, i // 4 * 8 + 2 * (thread % 4) + i % 2]


MISTAKES = {
    "a wait that is missing": (("wgmma.wait_group.sync.aligned 0;", ""), None),
    "a fence that is missing": (("wgmma.fence.sync.aligned;", ""), "misuse: .* without wgmma.fence"),
    "warps of different minds": (
        ('asm volatile("wgmma.fence', 'if (threadIdx.x < 96) b += 64; asm volatile("wgmma.fence'),
        "warps of a group give different",
    ),
    "a tile beyond the array": (
        ("(__cvta_generic_to_shared(b_ptr))", "(__cvta_generic_to_shared(b_ptr) + 16352)"),
        "out of bounds: .*shared array 'b_ptr'",
    ),
    "a base offset": (("ull << 62;", "ull << 62 | 1ull << 49;"), "base offset"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_with_products_show(built, name):
    (old, new), message = MISTAKES[name]
    a, b = (np.ones((rows, 16), np.float16) for rows in (64, 64))
    (ia, oa), (ib, ob) = image(a, 128, False), image(b, 128, False)
    broken = product(64, 128, False, False, oa, ob, lambda s: s.replace(old, new))
    for order in ORDERS:
        if message is None:  # what a thread finds in its registers is not the product
            assert np.isnan(emulate(broken, [ia, ib], order=order, cache_dir=built)[0]).all()
            continue
        with pytest.raises(EmulationError, match=message):
            emulate(broken, [ia, ib], order=order, cache_dir=built)


def matmul(n_major=1, element="half", change=lambda s: s):
    """Return the artifact of ``wgmma_matmul.cu``."""
    source = (Path(__file__).parent / "wgmma_matmul.cu").read_text()
    dtype, kind = {"half": ("float16", "f16"), "__nv_bfloat16": ("bfloat16", "bf16")}[element]
    source = source.replace("#define N_MAJOR 1", f"#define N_MAJOR {n_major}").replace(
        "f32.f16.f16", f"f32.{kind}.{kind}"
    )
    source = change(source.replace("half*", f"{element}*"))
    made = artifact(
        source,
        [("A", 136 * 376, dtype), ("B", 376 * 200, dtype)],
        [("C", 136 * 200, "float32")],
        block=256,
        arch="sm_90a",
    )
    expr = ops.matmul(136, 200, 376, dtype=dtype, transpose_b=not n_major, out_dtype="float32")
    launch = Launch(source, "f", ("A", "B", "C"), (2, 2, 1), (256, 1, 1), 4 * 32768)
    return replace(made, expression=expr, launches=(launch,))


@pytest.mark.parametrize(("n_major", "element"), [(1, "half"), (0, "half"), (1, "__nv_bfloat16")])
def test_a_pipelined_product_of_warp_groups(built, n_major, element):
    proof = prove(matmul(n_major, element), cache_dir=built)
    assert proof.ok, str(proof)


BROKEN = {
    "no fence between the copies and the products": ("fence.proxy.async.shared::cta;", ""),
    "a copy waited for too late": ('"n"(STAGES - 3)', '"n"(STAGES - 2)'),
    "no barrier": ("__syncthreads();", ""),
    "products waited for too late": ("wgmma.wait_group.sync.aligned 1;", "wgmma.wait_group.sync.aligned 2;"),
    "a stage refilled while it is read": ("k + STAGES - 2", "k + STAGES - 1"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_a_pipeline_must_not_do_is_caught(built, name):
    old, new = BROKEN[name]
    assert not prove(matmul(change=lambda s: s.replace(old, new)), cache_dir=built).ok


@pytest.mark.skipif(toolchain.available() is not None, reason=str(toolchain.available()))
@pytest.mark.parametrize("n_major", [0, 1])
def test_the_product_builds_without_spills(n_major):
    built = toolchain.build(matmul(n_major))
    assert built.build["spill_bytes"] == 0
    ptx = toolchain.compile_to_ptx(built.source, "sm_90a")
    assert ptx.count("wgmma.mma_async") == 4 and "cp.async.cg.shared.global" in ptx and ".local" not in ptx
