"""Scalar functions of models: one meaning in evaluation, TE, LLVM's code, CUDA C and HIP."""

import functools

import numpy as np
import pytest

pytest.importorskip("tvm")

import roller
from roller.backends.cuda import toolchain
from roller.emulator import prove
from roller.expr import FUNCTIONS, Axis, Call, Const, Load, Stage, Tensor, TensorExpr, axis_index
from roller.te.reader import read, to_te
from roller.templates.gpu.emit.cuda import lower
from tests.codegen.cpu_programs import kernel, program
from tests.offenders import every

N = 1003
#: Where a function is defined, and steep nowhere.
DOMAIN = {"asin": (-1, 1), "acos": (-1, 1), "acosh": (1.01, 50), "atanh": (-0.99, 0.99), "tan": (-1.4, 1.4),
          "log1p": (-0.9, 50)}  # fmt: skip
REAL = (
    "sin",
    "cos",
    "tan",
    "asin",
    "acos",
    "atan",
    "sinh",
    "cosh",
    "asinh",
    "acosh",
    "atanh",
    "expm1",
    "log1p",
    "round",
    "trunc",
    "fmod",
)
WHOLE = ("idiv", "imod", "bitand", "bitor", "bitxor", "shl", "shr")


def elementwise(fn, dtype, body=None):
    at = axis_index("i")
    tensors = tuple(Tensor(f"X{i}", (N,), dtype) for i in range(FUNCTIONS[fn].arity))
    body = body or Call(fn, tuple(Load(t.name, (at,)) for t in tensors))
    return TensorExpr(
        fn, tensors, (Stage(Tensor("Y", (N,), dtype), (Axis("i", N),), (at,), body, None, dtype),), ("Y",)
    )


def arrays(fn, dtype):
    rng = np.random.default_rng(7)
    low, high = DOMAIN.get(fn, (-9, 9))
    if fn in ("shl", "shr"):
        low, high = 0, 7
    low = max(low, 0) if dtype == "uint8" else low
    return [rng.uniform(low, high, N).astype(dtype) for _ in range(FUNCTIONS[fn].arity)]


def run(e, given):
    return kernel(e, program(e, "streaming", {"i": 32}, {"i": 256}, "i"))(*given)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("fn", REAL)
def test_real_functions_on_a_processor(fn, dtype):
    e, given = elementwise(fn, dtype), arrays(fn, dtype)
    if fn == "round":
        given[0][:9] = np.arange(9) - 4.5
    eps = np.finfo(dtype).eps
    np.testing.assert_allclose(run(e, given), e.evaluate(given)[0], rtol=4 * eps, atol=4 * eps)


@pytest.mark.parametrize("dtype", ["int64", "int8", "uint8"])
@pytest.mark.parametrize("fn", WHOLE)
def test_whole_functions_on_a_processor(fn, dtype):
    e, given = elementwise(fn, dtype), arrays(fn, dtype)
    np.testing.assert_array_equal(run(e, given), e.evaluate(given)[0])


def test_no_division_of_integers_traps():
    least = np.iinfo(np.int32).min
    a = np.resize(np.array([7, -7, least, 0, 5], np.int32), N)
    b = np.resize(np.array([0, -1, -1, 0, -2], np.int32), N)
    assert run(elementwise("idiv", "int32"), [a, b])[:5].tolist() == [0, 7, least, 0, -2]
    assert run(elementwise("imod", "int32"), [a, b])[:5].tolist() == [0, 0, 0, 0, 1]


def test_nan_is_seen():
    x = np.resize(np.array([1, np.nan, np.inf, -np.inf, 0], np.float32), N)
    seen = Call("select", (Call("isnan", (Load("X0", (axis_index("i"),)),)), Const(1), Const(0)))
    assert run(elementwise("isnan", "float32", seen), [x])[:5].tolist() == [0, 1, 0, 0, 0]


@every("fn", [*REAL, *WHOLE])
def test_functions_come_back_from_te(fn):
    e = elementwise(fn, "float32" if fn in REAL else "int32")
    given = arrays(fn, e.inputs[0].dtype)
    np.testing.assert_allclose(read(to_te(e)).evaluate(given)[0], e.evaluate(given)[0], rtol=1e-12)


def chain(functions, dtype):
    """One expression of many functions, each kept to where it is defined, so that one proof stands for all."""
    at = axis_index("i")
    x, y = (Load(n, (at,)) for n in ("X0", "X1"))
    if dtype == "int32":
        small = Call("bitand", (y, Const(7, dtype)))
        values = [Call(fn, (x, small if fn.startswith("sh") else y)) for fn in functions]
        body = functools.reduce(lambda a, b: Call("bitxor", (a, b)), values)
    else:
        within = Call("tanh", (x,))
        above = Call("add", (Call("abs", (x,)), Const(1.5, dtype)))
        inner = {"acosh": above, "atanh": Call("mul", (within, Const(0.9, dtype)))}
        values = [
            Call(fn, (x, Const(1.5, dtype))) if fn == "fmod" else Call(fn, (inner.get(fn, within),)) for fn in functions
        ]
        body = functools.reduce(lambda a, b: Call("add", (a, b)), values)
    tensors = tuple(Tensor(n, (N,), dtype) for n in ("X0", "X1"))
    stage = Stage(Tensor("Y", (N,), dtype), (Axis("i", N),), (at,), body, None, dtype)
    return TensorExpr("chain", tensors[: 1 if dtype != "int32" else 2], (stage,), ("Y",))


@pytest.mark.parametrize(("functions", "dtype"), [(REAL, "float32"), (REAL, "float64"), (WHOLE, "int32")])
def test_all_functions_on_the_emulator(functions, dtype):
    e = chain(functions, dtype)
    (best,) = roller.construct(e, "v100", top_k=1)
    proof = prove(lower(best.program, e, "sm_70", "v100"), orders=("forward",))
    assert proof.ok, str(proof)


@pytest.mark.skipif(toolchain.available() is not None, reason="needs the CUDA wheels")
@pytest.mark.parametrize(("functions", "dtype"), [(REAL, "float32"), (WHOLE, "int32")])
def test_all_functions_build_for_a_gpu(functions, dtype):
    e = chain(functions, dtype)
    (best,) = roller.construct(e, "h200", top_k=1)
    built = toolchain.build(lower(best.program, e, "sm_90", "h200"))
    assert built.build["registers"] > 0


HALF = ("exp", "log", "sqrt", "rsqrt", "tanh", "erf", "sigmoid", "pow", *REAL)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_computed_in_float32_and_rounded_once(dtype):
    at, kinds = axis_index("i"), {"float16": np.float16, "bfloat16": pytest.importorskip("ml_dtypes").bfloat16}
    x = np.random.default_rng(3).uniform(0.1, 0.9, N).astype(kinds[dtype])
    arguments = {"acosh": Call("add", (Load("X", (at,)), Const(1.5, dtype)))}
    stages = tuple(
        Stage(Tensor(f"Y_{fn}", (N,), dtype), (Axis("i", N),), (at,),
              Call(fn, (arguments.get(fn, Load("X", (at,))),) * FUNCTIONS[fn].arity), None, dtype)
        for fn in HALF
    )  # fmt: skip
    e = TensorExpr("half", (Tensor("X", (N,), dtype),), stages, tuple(s.name for s in stages))
    for fn, got, exact in zip(HALF, kernel(e, program(e, "streaming", {"i": 32}, {"i": 256}, "i"))(x), e.evaluate([x]),
                              strict=True):  # fmt: skip
        rtol = {"float16": 2e-3, "bfloat16": 1.6e-2}[dtype] * (4 if fn == "acosh" else 1)  # its argument is rounded too
        np.testing.assert_allclose(got.astype(np.float64), exact, rtol=rtol, atol=1e-6, err_msg=fn)
