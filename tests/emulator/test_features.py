"""CUDA features one by one: what a kernel says is what a GPU would do."""

import numpy as np
import pytest

from roller.artifact import Launch
from roller.emulator import ORDERS, emulate
from tests.emulator.snippets import artifact, kernel, run_float


def test_indices_count_blocks_and_threads_in_three_dimensions(built):
    body = """
    int t = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    int b = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    Y_ptr[b * (blockDim.x * blockDim.y * blockDim.z) + t] = 1000 * b + t;"""
    a = artifact(
        kernel("int* Y_ptr", body), [], [("Y", 2 * 3 * 2 * 4 * 3 * 5, "int32")], grid=(2, 3, 2), block=(4, 3, 5)
    )
    expected = [1000 * b + t for b in range(12) for t in range(60)]
    for order in ORDERS:
        assert emulate(a, [], order=order, cache_dir=built)[0].tolist() == expected


def test_device_functions_see_the_indices(built):
    head = "__device__ int me() { return blockIdx.x * blockDim.x + threadIdx.x; }"
    assert run_float("Y_ptr[me()] = X_ptr[me()] * 2.0f;", 64, grid=2, block=32, head=head, built=built)[63] == 126


@pytest.mark.parametrize("order", ORDERS)
def test_static_shared_memory_and_barriers_reverse_a_block(built, order):
    body = """
    __shared__ alignas(64) float tile_ptr[96];
    tile_ptr[threadIdx.x] = X_ptr[blockIdx.x * 96 + threadIdx.x];
    __syncthreads();
    Y_ptr[blockIdx.x * 96 + threadIdx.x] = tile_ptr[95 - threadIdx.x];"""
    got = run_float(body, 384, grid=4, block=96, order=order, built=built)
    assert got.tolist() == [b * 96 + 95 - t for b in range(4) for t in range(96)]


@pytest.mark.parametrize("order", ORDERS)
def test_dynamic_shared_memory_is_cast_and_divided(built, order):
    body = """
    extern __shared__ __align__(1024) uchar buf_dyn_shmem_ptr[];
    int t = threadIdx.x;
    ((float*)buf_dyn_shmem_ptr)[t] = X_ptr[t];
    ((int*)buf_dyn_shmem_ptr)[64 + t] = t;
    __syncthreads();
    Y_ptr[t] = ((float*)buf_dyn_shmem_ptr)[63 - t] + ((int*)buf_dyn_shmem_ptr)[64 + (t ^ 1)];"""
    got = run_float(body, 64, order=order, dynamic=512, built=built)
    assert got.tolist() == [63 - t + (t ^ 1) for t in range(64)]


def test_a_shared_array_of_two_dimensions(built):
    body = """
    __shared__ float tile[4][9];
    tile[threadIdx.x / 8][threadIdx.x % 8] = X_ptr[threadIdx.x];
    __syncthreads();
    Y_ptr[threadIdx.x] = tile[threadIdx.x % 4][threadIdx.x / 4];"""
    got = run_float(body, built=built)
    assert got.tolist() == np.arange(32.0).reshape(4, 8).T.ravel().tolist()


def test_each_block_finds_its_shared_memory_uninitialised(built):
    body = """
    __shared__ float seen[32];
    if (blockIdx.x == 0) seen[threadIdx.x] = 1.0f;
    __syncthreads();
    Y_ptr[blockIdx.x * 32 + threadIdx.x] = seen[threadIdx.x];"""
    got = run_float(body, 64, grid=2, block=32, built=built, order="forward")
    assert (got[:32] == 1).all() and np.isnan(got[32:]).all()


def test_vector_types_move_whole_vectors(built):
    body = """
    float4 v = *(float4*)(X_ptr + threadIdx.x * 4);
    float2 w = make_float2(v.x + v.y, v.z * v.w);
    *(float2*)(Y_ptr + threadIdx.x * 2) = w;"""
    got = run_float(body, 16, x=np.arange(32, dtype=np.float32), block=8, built=built)
    x = np.arange(32.0).reshape(8, 4)
    assert got.reshape(8, 2).tolist() == np.stack([x[:, 0] + x[:, 1], x[:, 2] * x[:, 3]], 1).tolist()


def test_integer_vectors_and_packed_bytes(built):
    body = """
    int4 v = *(int4*)(X_ptr + threadIdx.x * 4);
    char4 c = make_char4((char)v.x, (char)v.y, (char)v.z, (char)v.w);
    uchar4 u = *(uchar4*)(&c);
    Y_ptr[threadIdx.x] = __dp4a(*(int*)(&c), 0x01010101, 1) + u.x;"""
    x = np.arange(-16, 16, dtype=np.int32)
    a = artifact(kernel("int* X_ptr, int* Y_ptr", body), [("X", 32, "int32")], [("Y", 8, "int32")], block=8)
    rows = x.reshape(8, 4)
    assert emulate(a, [x], cache_dir=built)[0].tolist() == (rows.sum(1) + 1 + rows[:, 0].astype(np.uint8)).tolist()


SHUFFLES = {
    "__shfl_down_sync(0xffffffffu, x, 4, 32)": lambda t: t + 4 if t + 4 < 32 else t,
    "__shfl_down_sync(0xffffffffu, x, 2, 8)": lambda t: t + 2 if t % 8 + 2 < 8 else t,
    "__shfl_up_sync(0xffffffffu, x, 3, 16)": lambda t: t - 3 if t % 16 >= 3 else t,
    "__shfl_xor_sync(0xffffffffu, x, 5, 32)": lambda t: t ^ 5,
    "__shfl_sync(0xffffffffu, x, 2, 8)": lambda t: t // 8 * 8 + 2,
    "__shfl_sync(__activemask(), x, (t + 1) % 32, 32)": lambda t: (t + 1) % 32,
}


@pytest.mark.parametrize("order", ORDERS)
def test_shuffles_move_values_between_lanes(built, order):
    calls = "\n".join(f"Y_ptr[{i} * 64 + t] = {c};" for i, c in enumerate(SHUFFLES))
    body = f"int t = threadIdx.x; float x = X_ptr[t];\n{calls}"
    a = artifact(
        kernel("float* X_ptr, float* Y_ptr", body),
        [("X", 64, "float32")],
        [("Y", 64 * len(SHUFFLES), "float32")],
        block=64,
    )
    got = emulate(a, [np.arange(64, dtype=np.float32)], order=order, cache_dir=built)[0].reshape(-1, 64)
    for row, (call, source) in zip(got, SHUFFLES.items(), strict=True):
        assert row.tolist() == [w * 32 + source(t) for w in range(2) for t in range(32)], call


def test_shuffles_of_doubles_and_lanes_that_are_not_there(built):
    body = "double x = X_ptr[threadIdx.x]; Y_ptr[threadIdx.x] = __shfl_down_sync(0xffffffffu, x, 8, 32);"
    got = run_float(body, 24, out="float64", built=built)
    assert got[:16].tolist() == list(range(8, 24)) and np.isnan(got[16:]).all()


@pytest.mark.parametrize("order", ORDERS)
def test_votes_and_the_active_lanes_of_a_branch(built, order):
    body = """
    unsigned all = __ballot_sync(0xffffffffu, threadIdx.x % 3 == 0), some = 0;
    if (threadIdx.x < 10) some = __activemask();
    else some = __activemask() >> 8;
    Y_ptr[threadIdx.x] = all;
    Y_ptr[32 + threadIdx.x] = some;
    int any = __any_sync(0xffffffffu, threadIdx.x == 7);
    Y_ptr[64 + threadIdx.x] = any * 2 + __all_sync(0xffffffffu, threadIdx.x > 0);"""
    a = artifact(kernel("int* Y_ptr", body), [], [("Y", 96, "int32")], block=32)
    got = emulate(a, [], order=order, cache_dir=built)[0].reshape(3, 32)
    assert set(got[0]) == {sum(1 << t for t in range(0, 32, 3))}
    assert set(got[1][:10]) == {0x3FF} and set(got[1][10:]) == {0xFFFFFC00 >> 8}
    assert set(got[2]) == {2}


@pytest.mark.parametrize("order", ORDERS)
def test_a_warp_reduction_within_a_branch(built, order):
    # As TVM writes it: the mask of the active lanes, then a tree of shuffles.
    body = """
    float s = X_ptr[threadIdx.x];
    if (threadIdx.x < 16) {
      unsigned mask = __activemask();
      for (int d = 8; d > 0; d >>= 1) s += __shfl_down_sync(mask, s, d, 32);
    }
    Y_ptr[threadIdx.x] = s;"""
    got = run_float(body, order=order, built=built)
    assert got[0] == sum(range(16)) and got[16:].tolist() == list(range(16, 32))


def test_shuffles_before_sm_70_use_the_prelude_of_the_source(built):
    head = """
    #if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ < 700)
    #define __shfl_down_sync(mask, var, offset, width) __shfl_down((var), (offset), (width))
    #endif"""
    body = "Y_ptr[threadIdx.x] = __shfl_down_sync(0xffffffffu, X_ptr[threadIdx.x], 1, 32);"
    assert run_float(body, head=head, arch="sm_61", built=built)[0] == 1


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("workers", [1, 3])
def test_atomics_of_all_blocks_add_up(built, order, workers):
    body = """
    if (threadIdx.x == 0 && blockIdx.x == 0) Y_ptr[1] = 0;
    atomicMax(&Y_ptr[0], (int)(blockIdx.x * 32 + threadIdx.x));
    __shared__ int count[1];
    if (threadIdx.x == 0) count[0] = 0;
    __syncthreads();
    atomicAdd(&(count[0]), 2);
    __syncthreads();
    if (threadIdx.x == 0) atomicCAS(Y_ptr + 2 + blockIdx.x, -1, count[0]);"""
    a = artifact(kernel("int* Y_ptr", body), [], [("Y", 10, "int32")], grid=8, block=32)
    got = emulate(a, [], order=order, workers=workers, cache_dir=built)[0]
    assert got[0] == 255 and got[2:].tolist() == [64] * 8


def test_atomic_addition_of_floats_and_its_old_value(built):
    body = """
    if (threadIdx.x == 0) Y_ptr[0] = 0.0f;
    __syncthreads();
    float old = atomicAdd(Y_ptr, 1.0f);
    if (old == 31.0f) Y_ptr[1] = 7.0f;"""
    assert run_float(body, built=built, order="random")[:2].tolist() == [32, 7]


MATH = {
    "expf(x)": np.exp, "__expf(x)": np.exp, "logf(x)": np.log, "__logf(x)": np.log, "sqrtf(x)": np.sqrt,
    "rsqrtf(x)": lambda x: x**-0.5, "tanhf(x)": np.tanh, "powf(x, 1.5f)": lambda x: x**1.5, "fabsf(-x)": np.abs,
    "floorf(x)": np.floor, "ceilf(x)": np.ceil, "max(x, 1.0f)": lambda x: np.maximum(x, 1),
    "min(x, 1.0f)": lambda x: np.minimum(x, 1), "fmaf(x, x, 1.0f)": lambda x: x * x + 1, "exp2f(x)": np.exp2,
    "sinf(x)": np.sin, "__cosf(x)": np.cos, "__fdividef(1.0f, x)": lambda x: 1 / x, "truncf(x)": np.trunc,
    "roundf(x)": lambda x: np.floor(x + 0.5), "__powf(x, 2.0f)": np.square, "fminf(CUDART_INF_F, x)": lambda x: x,
    "erff(x) * 0.0f + (float)min((long long)7, (long long)9)": lambda x: 7 + 0 * x,
    "(float)max((int)x, 1)": lambda x: np.maximum(np.floor(x), 1), "(float)__popc(255u)": lambda x: 8 + 0 * x,
    "__int_as_float(__float_as_int(x))": lambda x: x,
}  # fmt: skip


def test_scalar_functions(built):
    lines = "\n".join(f"Y_ptr[{i} * 16 + threadIdx.x] = {f};" for i, f in enumerate(MATH))
    a = artifact(
        kernel("float* X_ptr, float* Y_ptr", f"float x = X_ptr[threadIdx.x];\n{lines}"),
        [("X", 16, "float32")], [("Y", 16 * len(MATH), "float32")], block=16,
    )  # fmt: skip
    x = np.linspace(0.1, 3.1, 16, dtype=np.float32)
    for row, (text, f) in zip(emulate(a, [x], cache_dir=built)[0].reshape(-1, 16), MATH.items(), strict=True):
        np.testing.assert_allclose(row, f(x.astype(np.float64)), rtol=2e-6, err_msg=text)


def every_half():
    return np.arange(65536, dtype=np.uint32).astype(np.uint16).view(np.float16)


def test_half_converts_exactly_and_rounds_to_nearest_even(built):
    body = """
    int i = blockIdx.x * 256 + threadIdx.x;
    Y_ptr[i] = (float)X_ptr[i];
    Z_ptr[i] = (half)((float)X_ptr[i] * 1.0009765f + 3.0e-8f);"""
    a = artifact(
        kernel("half* X_ptr, float* Y_ptr, half* Z_ptr", body, "#include <cuda_fp16.h>"),
        [("X", 65536, "float16")], [("Y", 65536, "float32"), ("Z", 65536, "float16")], grid=256, block=256,
    )  # fmt: skip
    x = every_half()
    wide, narrow = emulate(a, [x], cache_dir=built)
    np.testing.assert_array_equal(wide, x.astype(np.float32))
    with np.errstate(all="ignore"):
        expected = (x.astype(np.float32) * np.float32(1.0009765) + np.float32(3.0e-8)).astype(np.float16)
    np.testing.assert_array_equal(narrow, expected)


def test_half_arithmetic_and_half2(built):
    head = """#include <cuda_fp16.h>
    __device__ half max(half a, half b) { return __hgt(__half(a), __half(b)) ? a : b; }"""
    body = """
    int t = threadIdx.x;
    half x = X_ptr[t];
    Y_ptr[t] = x * x + __float2half_rn(0.1f);
    Y_ptr[64 + t] = max(x, (half)0.5f) / (half)3.0f;
    half2 p = __hmul2(*(half2*)(X_ptr + t / 2 * 2), make_half2(2.0f, 3.0f));
    Y_ptr[128 + t] = t % 2 ? p.y : p.x;
    Y_ptr[192 + t] = hexp(-x) + __hneg(x);"""
    a = artifact(
        kernel("half* X_ptr, half* Y_ptr", body, head), [("X", 64, "float16")], [("Y", 256, "float16")], block=64
    )
    x = np.linspace(-2, 2, 64).astype(np.float16)
    got = emulate(a, [x], cache_dir=built)[0].reshape(4, 64)
    half = np.float16
    np.testing.assert_array_equal(got[0], x * x + half(0.1))
    np.testing.assert_array_equal(got[1], np.maximum(x, half(0.5)) / half(3))
    np.testing.assert_array_equal(got[2], x * np.tile(half([2, 3]), 32))
    np.testing.assert_array_equal(got[3], np.exp(-x.astype(np.float32)).astype(half) - x)


def test_bfloat16_rounds_to_nearest_even(built):
    body = "Y_ptr[threadIdx.x] = __float2bfloat16_rn((float)X_ptr[threadIdx.x] * 1.5f) + X_ptr[threadIdx.x];"
    a = artifact(
        kernel("nv_bfloat16* X_ptr, nv_bfloat16* Y_ptr", body, "#include <cuda_bf16.h>"),
        [("X", 64, "bfloat16")], [("Y", 64, "bfloat16")], block=64,
    )  # fmt: skip

    def bf16(x):
        bits = np.asarray(x, np.float32).view(np.uint32)
        return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).view(np.float32)

    x = np.linspace(-5, 5, 64, dtype=np.float32)
    got = emulate(a, [x], cache_dir=built)[0]
    np.testing.assert_array_equal(got, bf16(bf16(bf16(x) * np.float32(1.5)) + bf16(x)))
    bits = (x.view(np.uint32) >> 16).astype(np.uint16)
    assert emulate(a, [bits], cache_dir=built)[0].dtype == np.float32


def test_launches_run_in_order_through_a_workspace(built):
    source = """
    extern "C" __global__ void second(float* W_ptr, float* Y_ptr) { Y_ptr[threadIdx.x] = W_ptr[31 - threadIdx.x]; }
    extern "C" __global__ void first(float* W_ptr, float* X_ptr) { W_ptr[threadIdx.x] = X_ptr[threadIdx.x] + 1.0f; }"""
    launches = [
        Launch(source, "first", ("W", "X"), (1, 1, 1), (32, 1, 1)),
        Launch(source, "second", ("W", "Y"), (1, 1, 1), (32, 1, 1)),
    ]
    a = artifact(
        source,
        [("X", 32, "float32")],
        [("Y", 32, "float32")],
        workspaces=[("W", 32, "float32")],
        block=32,
        launches=launches,
    )
    got = emulate(a, [np.arange(32, dtype=np.float32)], cache_dir=built)[0]
    assert got.tolist() == [32 - t for t in range(32)]


def test_unchecked_kernels_give_the_same_result(built):
    body = """
    __shared__ float tile_ptr[64];
    *(float2*)(tile_ptr + threadIdx.x * 2) = *(float2*)(X_ptr + threadIdx.x * 2);
    __syncthreads();
    Y_ptr[threadIdx.x] = tile_ptr[63 - threadIdx.x] + *(&tile_ptr[threadIdx.x]);"""
    a = artifact(kernel("float* X_ptr, float* Y_ptr", body), [("X", 64, "float32")], [("Y", 32, "float32")], block=32)
    x = np.random.default_rng(0).standard_normal(64).astype(np.float32)
    for check in (True, False):
        np.testing.assert_array_equal(emulate(a, [x], check=check, cache_dir=built)[0], x[63:31:-1] + x[:32])
