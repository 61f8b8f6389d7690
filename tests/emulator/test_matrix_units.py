"""Matrix units and inline PTX, against NumPy and the register layouts of the PTX manual."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from roller import ops
from roller.artifact import Launch
from roller.emulator import ORDERS, emulate, prove
from roller.emulator.ptx import translate_asm
from roller.errors import EmulationError
from tests.emulator.snippets import artifact, kernel

RNG = np.random.default_rng(7)
WMMA = "#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n#include <mma.h>\nusing namespace nvcuda;"


def bf16(x):
    return ((x.view(np.uint32) + 0x7FFF + (x.view(np.uint32) >> 16 & 1)) & 0xFFFF0000).view(np.float32)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("a_layout", "b_layout"), [("row", "col"), ("col", "row")])
def test_wmma_multiplies_and_its_fragments_are_element_wise(built, order, a_layout, b_layout):
    body = f"""
    __shared__ alignas(64) half tile_ptr[16 * 24];
    nvcuda::wmma::fragment<nvcuda::wmma::matrix_a, 16, 16, 16, half, nvcuda::wmma::{a_layout}_major> a_ptr[1];
    nvcuda::wmma::fragment<nvcuda::wmma::matrix_b, 16, 16, 16, half, nvcuda::wmma::{b_layout}_major> b_ptr[1];
    nvcuda::wmma::fragment<nvcuda::wmma::accumulator, 16, 16, 16, float> c_ptr[1];
    for (int i = threadIdx.x; i < 256; i += 32) tile_ptr[i / 16 * 24 + i % 16] = A_ptr[i];
    __syncthreads();
    nvcuda::wmma::fill_fragment(c_ptr[0], 1.0f);
    nvcuda::wmma::load_matrix_sync(a_ptr[0], (half *)(&(tile_ptr[0])), 24);
    nvcuda::wmma::load_matrix_sync(b_ptr[0], B_ptr + 0, 16);
    nvcuda::wmma::mma_sync(c_ptr[0], a_ptr[0], b_ptr[0], c_ptr[0]);
    for (int e = 0; e < c_ptr[0].num_elements; ++e) c_ptr[0].x[e] = c_ptr[0].x[e] * 2.0f;
    nvcuda::wmma::store_matrix_sync((&(Y_ptr[0])), c_ptr[0], 16, nvcuda::wmma::mem_row_major);"""
    art = artifact(
        kernel("half* A_ptr, half* B_ptr, float* Y_ptr", body, WMMA),
        [("A", 256, "float16"), ("B", 256, "float16")], [("Y", 256, "float32")], block=32, arch="sm_70",
    )  # fmt: skip
    a, b = (RNG.standard_normal((16, 16)).astype(np.float16) for _ in range(2))
    given = [np.ascontiguousarray(x.T if by == "col" else x).ravel() for x, by in ((a, a_layout), (b, b_layout))]
    got = emulate(art, given, order=order, cache_dir=built)[0].reshape(16, 16)
    np.testing.assert_allclose(got, 2 * (1 + a.astype(np.float64) @ b.astype(np.float64)), rtol=1e-5, atol=1e-5)


TYPES = {
    "half": ("half", "half", "float16", 16, 16, 16, 0.02),
    "bf16": ("__nv_bfloat16", "float", "bfloat16", 32, 8, 16, 1e-4),
    "int8": ("signed char", "int", "int8", 8, 32, 16, 0),
    "tf32": ("wmma::precision::tf32", "float", "float32", 16, 16, 8, 1e-4),
}


@pytest.mark.parametrize("name", TYPES)
def test_wmma_types_and_shapes(built, name):
    t, acc, dtype, m, n, k, tolerance = TYPES[name]
    stored = "float" if name == "tf32" else t
    body = f"""
    wmma::fragment<wmma::matrix_a, {m}, {n}, {k}, {t}, wmma::row_major> a;
    wmma::fragment<wmma::matrix_b, {m}, {n}, {k}, {t}, wmma::row_major> b;
    wmma::fragment<wmma::accumulator, {m}, {n}, {k}, {acc}> c;
    wmma::fill_fragment(c, 0);
    wmma::load_matrix_sync(a, A_ptr, {k});
    wmma::load_matrix_sync(b, B_ptr, {n});
    wmma::mma_sync(c, a, b, c);
    wmma::store_matrix_sync(Y_ptr, c, {m}, wmma::mem_col_major);"""
    out = {"half": "float16", "float": "float32", "int": "int32"}[acc]
    art = artifact(
        kernel(f"{stored}* A_ptr, {stored}* B_ptr, {acc}* Y_ptr", body, WMMA),
        [("A", m * k, dtype), ("B", k * n, dtype)], [("Y", m * n, out)], block=32,
    )  # fmt: skip
    if dtype == "int8":
        a, b = (RNG.integers(-100, 100, s).astype(np.int8) for s in ((m, k), (k, n)))
    else:
        a, b = (RNG.standard_normal(s).astype("f") for s in ((m, k), (k, n)))
        a, b = (bf16(x) if name == "bf16" else x.astype(dtype) for x in (a, b))
    got = emulate(art, [a, b], cache_dir=built)[0].reshape(n, m).T
    np.testing.assert_allclose(got, a.astype(np.float64) @ b.astype(np.float64), atol=tolerance * 4)


def test_wmma_reports_a_fragment_that_leaves_its_tile(built):
    body = """
    __shared__ half tile_ptr[16 * 16];
    for (int i = threadIdx.x; i < 256; i += 32) tile_ptr[i] = A_ptr[i];
    __syncwarp();
    wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> a;
    wmma::load_matrix_sync(a, tile_ptr, 17);
    Y_ptr[threadIdx.x] = a.x[0];"""
    art = artifact(
        kernel("half* A_ptr, float* Y_ptr", body, WMMA), [("A", 256, "float16")], [("Y", 32, "float32")], block=32
    )
    with pytest.raises(EmulationError, match=r"f: out of bounds: .* of shared array 'tile_ptr', which has 512 bytes"):
        emulate(art, [np.zeros(256, np.float16)], cache_dir=built)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("a_layout", "b_layout"), [("row", "col"), ("col", "row")])
def test_wmma_in_ptx(built, order, a_layout, b_layout):
    listed = lambda start: ", ".join(f"%{start + n}" for n in range(8))  # noqa: E731
    load = (
        'asm volatile("wmma.load.{0}.sync.aligned.{1}.m16n16k16.shared.f16 {{{2}}}, [%8], %9;" : {3} '
        ': "r"(roller_at({0}_tile_ptr)), "r"(32));'
    )
    bound = {x: ", ".join(f'"=r"({x}[{n}])' for n in range(8)) for x in "ab"}
    body = f"""
    __shared__ alignas(64) unsigned short a_tile_ptr[16 * 32];
    __shared__ alignas(64) unsigned short b_tile_ptr[16 * 32];
    __shared__ alignas(64) float c_tile_ptr[16 * 24];
    for (int i = threadIdx.x; i < 256; i += 32) a_tile_ptr[i / 16 * 32 + i % 16] = *(unsigned short*)(&A_ptr[i]);
    for (int i = threadIdx.x; i < 256; i += 32) b_tile_ptr[i / 16 * 32 + i % 16] = *(unsigned short*)(&B_ptr[i]);
    unsigned a[8], b[8]; float d[8];
    for (int i = 0; i < 8; ++i) d[i] = 1.0f;
    __syncwarp();
    {load.format("a", a_layout, listed(0), bound["a"])}
    {load.format("b", b_layout, listed(0), bound["b"])}
    asm volatile("wmma.mma.sync.aligned.{a_layout}.{b_layout}.m16n16k16.f32.f32 {{{listed(0)}}}, {{{listed(8)}}},"
      "{{{listed(16)}}}, {{{listed(0)}}};"
      : {", ".join(f'"+f"(d[{n}])' for n in range(8))}
      : {", ".join(f'"r"({x}[{n}])' for x in "ab" for n in range(8))});
    asm volatile("wmma.store.d.sync.aligned.row.m16n16k16.shared.f32 [%0], {{{listed(2)}}}, %1;"
      :: "r"(roller_at(c_tile_ptr)), "r"(24), {", ".join(f'"f"(d[{n}])' for n in range(8))});
    __syncwarp();
    for (int i = threadIdx.x; i < 256; i += 32) Y_ptr[i] = c_tile_ptr[i / 16 * 24 + i % 16];"""
    at = "static __device__ unsigned roller_at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }"
    art = artifact(
        kernel("half* A_ptr, half* B_ptr, float* Y_ptr", body, "#include <cuda_fp16.h>\n" + at),
        [("A", 256, "float16"), ("B", 256, "float16")], [("Y", 256, "float32")], block=32, arch="sm_70",
    )  # fmt: skip
    a, b = (RNG.standard_normal((16, 16)).astype(np.float16) for _ in range(2))
    given = [np.ascontiguousarray(x.T if by == "col" else x).ravel() for x, by in ((a, a_layout), (b, b_layout))]
    got = emulate(art, given, order=order, cache_dir=built)[0].reshape(16, 16)
    np.testing.assert_allclose(got, 1 + a.astype(np.float64) @ b.astype(np.float64), rtol=1e-5, atol=1e-5)


def test_wmma_in_ptx_reports_rows_that_are_no_multiple_of_a_lanes_share(built):
    registers, bound = (", ".join(f % n for n in range(8)) for f in ("%%%d", '"=r"(a[%d])'))
    load = f"wmma.load.a.sync.aligned.row.m16n16k16.shared.f16 {{{registers}}}, [%8], %9;"
    body = f"""
    __shared__ alignas(64) unsigned short tile_ptr[16 * 24];
    for (int i = threadIdx.x; i < 16 * 24; i += 32) tile_ptr[i] = 0;
    __syncwarp();
    unsigned a[8], at = (unsigned)__cvta_generic_to_shared(tile_ptr);
    asm volatile("{load}" : {bound} : "r"(at), "r"(24));
    Y_ptr[threadIdx.x] = a[0];"""
    art = artifact(kernel("int* Y_ptr", body), [], [("Y", 32, "int32")], block=32, arch="sm_70")
    with pytest.raises(EmulationError, match=r"misaligned: .* rows of 32, got .* and 48"):
        emulate(art, [], cache_dir=built)


def test_an_address_passed_without_type_still_has_its_bounds(built):
    take = "static __device__ int take(const void* p) { return *(const int*)p; }"
    body = "if (threadIdx.x == 0) Y_ptr[0] = take((&(Y_ptr[%d])));"
    last, beyond = (artifact(kernel("int* Y_ptr", body % at, take), [], [("Y", 4, "int32")], block=1) for at in (3, 4))
    emulate(last, [], cache_dir=built)
    with pytest.raises(EmulationError, match=r"out of bounds: .* at byte 16 of global buffer 'Y', which has 16 bytes"):
        emulate(beyond, [], cache_dir=built)


LDMATRIX = """
    __shared__ alignas(64) unsigned short tile_ptr[4 * 64];
    for (int i = threadIdx.x; i < 256; i += 32) tile_ptr[i] = i;
    __syncthreads();
    unsigned r_ptr[4];
    {
      unsigned int addr = __cvta_generic_to_shared((&(tile_ptr[threadIdx.x * 8])));
      __asm__ __volatile__(
        "ldmatrix.sync.aligned.m8n8.x4%s.shared.b16"
        "{%%0, %%1, %%2, %%3}, [%%4];\\n"
        : "=r"(((unsigned *)(r_ptr + 0))[0]), "=r"(r_ptr[1]), "=r"(r_ptr[2]), "=r"(r_ptr[3])
        : "r"(addr)
      );
    }
    for (int m = 0; m < 4; ++m) Y_ptr[threadIdx.x * 4 + m] = r_ptr[m];"""


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("transposed", [False, True])
def test_ldmatrix_distributes_rows_to_lanes(built, order, transposed):
    body = LDMATRIX % (".trans" if transposed else "")
    art = artifact(kernel("int* Y_ptr", body), [], [("Y", 128, "int32")], block=32)
    got = emulate(art, [], order=order, cache_dir=built)[0].reshape(32, 4).view(np.uint32)
    for lane in range(32):
        for m in range(4):
            row, column = lane // 4, 2 * (lane % 4)
            at = [(row, column), (row, column + 1)]
            low, high = (64 * m + (8 * c + r if transposed else 8 * r + c) for r, c in at)
            assert got[lane, m] == low | high << 16


def a_at(kind, k, lane, i):
    """Row and column of element ``i`` of operand A in a lane (PTX manual, mma.m16n8k*)."""
    g, t = lane // 4, lane % 4
    if kind == "tf32":
        return g + 8 * (i % 2), t + 4 * (i // 2)
    if kind == "s8":
        return g + 8 * (i // 4 % 2), 4 * t + i % 4 + 16 * (i // 8)
    return g + 8 * (i // 2 % 2), 2 * t + i % 2 + 8 * (i // 4)


def b_at(kind, k, lane, i):
    """Row and column of element ``i`` of operand B in a lane."""
    g, t = lane // 4, lane % 4
    if kind == "tf32":
        return t + 4 * i, g
    if kind == "s8":
        return 4 * t + i % 4 + 16 * (i // 4), g
    return 2 * t + i % 2 + 8 * (i // 2), g


MMA = {
    "f16": ("m16n8k16.row.col.f32.f16.f16.f32", 16, np.float16, "float32", 4),
    "f16k8": ("m16n8k8.row.col.f32.f16.f16.f32", 8, np.float16, "float32", 4),
    "f16f16": ("m16n8k16.row.col.f16.f16.f16.f16", 16, np.float16, "float16", 2),
    "bf16": ("m16n8k16.row.col.f32.bf16.bf16.f32", 16, np.float32, "float32", 4),
    "tf32": ("m16n8k8.row.col.f32.tf32.tf32.f32", 8, np.float32, "float32", 4),
    "s8": ("m16n8k32.row.col.s32.s8.s8.s32", 32, np.int8, "int32", 4),
    "s8k16": ("m16n8k16.row.col.s32.s8.s8.s32", 16, np.int8, "int32", 4),
}


def registers(matrix, at, kind, k, count):
    """Pack ``count`` elements per lane into 32-bit registers."""
    out = []
    for lane in range(32):
        values = np.array([matrix[at(kind, k, lane, i)] for i in range(count)])
        values = (values.view(np.uint32) >> 16).astype(np.uint16) if kind == "bf16" else values
        out.append(values.view(np.int32))
    return np.concatenate(out)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", MMA)
def test_mma_by_the_layouts_of_the_manual(built, name, order):
    shape, k, dtype, out, n_d = MMA[name]
    kind = name.removesuffix("k8").removesuffix("k16").removesuffix("f16") or "f16"
    kind = "bf16" if name == "bf16" else kind
    n_a, n_b = 16 * k // 32, 8 * k // 32
    packed = {"tf32": 1, "s8": 4}.get(kind, 2)
    ra, rb = n_a // packed, n_b // packed
    c, c_type = ("f", "float") if out == "float32" else ("r", "unsigned")
    listed = lambda start, n: ", ".join(f"%{start + i}" for i in range(n))  # noqa: E731
    body = f"""
    unsigned a_ptr[{ra}], b_ptr[{rb}]; {c_type} d_ptr[4];
    for (int i = 0; i < {ra}; ++i) a_ptr[i] = A_ptr[threadIdx.x * {ra} + i];
    for (int i = 0; i < {rb}; ++i) b_ptr[i] = B_ptr[threadIdx.x * {rb} + i];
    for (int i = 0; i < {n_d}; ++i) d_ptr[i] = 0;
    for (int twice = 0; twice < 2; ++twice)
    asm volatile("mma.sync.aligned.{shape} {{{listed(0, n_d)}}}, {{{listed(n_d, ra)}}}, {{{listed(n_d + ra, rb)}}},"
      "{{{listed(0, n_d)}}};"
      : {", ".join(f'"+{c}"(d_ptr[{i}])' for i in range(n_d))}
      : {", ".join(f'"r"(a_ptr[{i}])' for i in range(ra))}, {", ".join(f'"r"(b_ptr[{i}])' for i in range(rb))});
    for (int i = 0; i < {n_d}; ++i) D_ptr[threadIdx.x * {n_d} + i] = *(int*)(&d_ptr[i]);"""
    art = artifact(
        kernel("int* A_ptr, int* B_ptr, int* D_ptr", body),
        [("A", 32 * ra, "int32"), ("B", 32 * rb, "int32")], [("D", 32 * n_d, "int32")], block=32,
    )  # fmt: skip
    if kind == "s8":
        a, b = RNG.integers(-128, 128, (16, k)).astype(np.int8), RNG.integers(-128, 128, (k, 8)).astype(np.int8)
    else:
        a, b = (RNG.standard_normal(s).astype("f") for s in ((16, k), (k, 8)))
        a, b = (bf16(x) for x in (a, b)) if kind in ("bf16", "tf32") else (a.astype(dtype), b.astype(dtype))
    given = [registers(a, a_at, kind, k, n_a), registers(b, b_at, kind, k, n_b)]
    got = emulate(art, given, order=order, cache_dir=built)[0].view(out)
    expected = 2 * (a.astype(np.float64) @ b.astype(np.float64))
    for lane in range(32):
        for i in range(4):
            row, column = lane // 4 + 8 * (i // 2), 2 * (lane % 4) + i % 2
            np.testing.assert_allclose(
                got[4 * lane + i], expected[row, column], rtol=1e-2 if n_d == 2 else 1e-5, atol=2e-2
            )


def async_matmul(change=lambda s: s):
    source = change((Path(__file__).parent / "async_matmul.cu").read_text())
    made = artifact(source, [("A", 8192, "float32"), ("B", 4096, "float32")], [("C", 8192, "float32")], block=256)
    launch = Launch(source, "main_kernel", ("A", "B", "C"), (2, 2, 1), (256, 1, 1), 3 * (1024 + 512) * 4)
    return replace(made, expression=ops.matmul(128, 64, 64), launches=(launch,))


def test_a_pipelined_kernel_with_asynchronous_copies(built):
    proof = prove(async_matmul(), cache_dir=built)
    assert proof.ok, str(proof)


def test_a_wait_that_leaves_one_copy_too_many_is_caught(built):
    broken = async_matmul(lambda s: s.replace("cp.async.wait_group 2", "cp.async.wait_group 3"))
    proof = prove(broken, cache_dir=built)
    assert "reverse" in dict(proof.failures)


def test_a_copy_into_a_stage_still_being_read_is_caught(built):
    broken = async_matmul(lambda s: s.replace("__syncthreads();", ";", 1))
    proof = prove(broken, cache_dir=built)
    assert "forward" in dict(proof.failures)


def test_asynchronous_copies_beyond_the_stage_or_misaligned_are_reported(built):
    beyond = async_matmul(lambda s: s.replace("+ 1536), A_ptr", "+ 1536 + 4096), A_ptr", 1))
    with pytest.raises(EmulationError, match=r"out of bounds: .*'buf_dyn_shmem_ptr', which has 18432 bytes"):
        emulate(beyond, [np.zeros((128, 64), "f"), np.zeros((64, 64), "f")], cache_dir=built)
    odd = async_matmul(lambda s: s.replace("+ 1536), A_ptr", "+ 1537), A_ptr", 1))
    with pytest.raises(EmulationError, match=r"misaligned: .*'buf_dyn_shmem_ptr' needs a multiple of 8 bytes"):
        emulate(odd, [np.zeros((128, 64), "f"), np.zeros((64, 64), "f")], cache_dir=built)


def test_predicated_ptx_and_registers_of_the_statement():
    text = translate_asm(
        'asm volatile("{.reg .pred p;\\n setp.ne.b32 p, %2, 0;\\n @!p mov.b32 %0, 0;\\n"\n'
        '" @p ld.global.nc.f32 %0, [%1];}"\n'
        '  : "=f"(x) : "l"((void*)(A + 1)), "r"((int)(i < 3)));'
    )
    assert "bool p;" in text and "p = (int)(((int)(i < 3))) != (int)(0);" in text
    assert "if (!p) { emul::ptx::put((x), (uint32_t)(0)); }" in text and text.count("\n") == 2


def test_unknown_ptx_is_named():
    with pytest.raises(EmulationError, match=r"inline PTX 'tcgen05.fence': no translation .* roller/emulator/ptx.py"):
        translate_asm('asm volatile("tcgen05.fence;");')
