"""Calls of compiled kernels with whatever a caller may pass: right, or refused by a LaunchError."""

from __future__ import annotations

import functools
import importlib.util
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.fuzz.arrays import Guarded, filled, guarded_copy, numpy_dtype
from tests.fuzz.cases import generator
from tests.fuzz.draw import Limits
from tests.fuzz.judge import Report, judges
from tests.fuzz.language import Data
from tests.fuzz.verdict import OK, REFUSED, WRONG, Verdict, refusal

#: Ways to hold the values of an input: all are right.
RIGHT = (
    "C",
    "fortran",
    "strided",
    "negative",
    "misaligned",
    "readonly",
    "guarded",
    "guarded begin",
    "broadcast",
    "torch",
)
#: And what is not: refused, by name.
FALSE = ("dtype", "shape", "rank", "list", "none", "masked", "object", "swapped bytes", "missing", "extra")
OUTS = (
    "absent",
    "absent",
    "given",
    "guarded",
    "tuple",
    "strided out",
    "misaligned out",
    "readonly out",
    "overlaps input",
    "same twice",
    "wrong shape out",
    "wrong dtype out",
    "short",
)
_RIGHT_OUTS = ("absent", "given", "guarded", "tuple")


def _matmul(a: Any, b: Any) -> Any:
    return a @ b


#: Kernel: how it is compiled, and what it computes in float64.
KERNELS: dict[str, tuple[str, dict[str, Any], Callable[..., Any]]] = {
    "matmul": ("matmul(33, 17, 29)", {}, _matmul),
    "matmul constant": ("matmul(5, 64, 31)", {"constant": "B"}, _matmul),
    "add": ("elementwise(('add', 'relu'), (7, 33))", {}, lambda a, b: np.maximum(a + b, 0)),
    "halves": ("elementwise('mul', (19, 5), dtype='float16')", {}, lambda a, b: a * b),
    "bytes": ("elementwise('max', (65,), dtype='int8')", {}, np.maximum),
    "bfloat": ("elementwise('add', (6, 9), dtype='bfloat16')", {}, lambda a, b: a + b),
    "rows": ("reduce('sum', (13, 101), axes=(1,))", {}, lambda a: a.sum(1)),
    "maximum": ("reduce('max', (9, 11, 5), axes=(0, 2))", {}, lambda a: a.max((0, 2))),
    "doubles": ("elementwise('sub', (1, 3), dtype='float64')", {}, lambda a, b: a - b),
}


@generator("calls")
@st.composite
def call_cases(draw: Any, limits: Limits) -> Data:
    """Draw a call."""
    name = draw(st.sampled_from(sorted(KERNELS)))
    one = st.one_of(
        st.sampled_from(RIGHT), st.sampled_from(RIGHT), st.sampled_from(RIGHT), st.sampled_from((*RIGHT, *FALSE))
    )
    return {
        "kernel": name,
        "inputs": [draw(one), draw(one)],
        "out": draw(st.one_of(st.sampled_from(_RIGHT_OUTS), st.sampled_from(_RIGHT_OUTS), st.sampled_from(OUTS))),
        "special": draw(st.booleans()),
        "threads": draw(st.sampled_from((1, 1, 1, 3))),
        "seed": draw(st.integers(0, 999)),
        "constant": draw(st.sampled_from(RIGHT[:6])),
    }


@functools.cache
def _compiled(name: str, layout: str) -> tuple[Any, dict[str, np.ndarray]]:
    import roller

    text, how, _ = KERNELS[name]
    expr = roller.ops.parse(text)
    constants = {}
    if "constant" in how:
        tensor = next(t for t in expr.inputs if t.name == how["constant"])
        constants[tensor.name] = _held(filled(tensor.shape, tensor.dtype, np.random.default_rng(5)), layout)[0]
    return roller.compile(expr, top_k=1, deterministic=True, constants=constants or None), constants


def _held(a: np.ndarray, layout: str) -> tuple[Any, Any]:
    """Return the values of an array held in another way, and what must outlive it."""
    if layout == "fortran":
        return np.asfortranarray(a), None
    if layout == "strided":
        wide = np.full((*a.shape[:-1], 2 * a.shape[-1]), 77).astype(a.dtype)
        wide[..., ::2] = a
        return wide[..., ::2], None
    if layout == "negative":
        return np.ascontiguousarray(a[..., ::-1])[..., ::-1], None
    if layout == "misaligned":
        raw = np.zeros(a.nbytes + 1, np.uint8)
        out = raw[1:].view(a.dtype).reshape(a.shape)
        out[...] = a
        return out, None
    if layout == "readonly":
        out = a.copy()
        out.flags.writeable = False
        return out, None
    if layout.startswith("guarded"):
        held = guarded_copy(a, a.dtype.name, layout == "guarded")
        return held.array, held
    if layout == "broadcast":
        return np.broadcast_to(a[:1], a.shape), None
    # Where PyTorch is not installed the case is one of a plain array: what a seed draws must not depend on it.
    if layout == "torch" and a.dtype.name != "bfloat16" and importlib.util.find_spec("torch") is not None:
        import torch

        return torch.from_numpy(a.copy()), None
    return a, None


def _false(a: np.ndarray, how: str) -> Any:
    other = np.int16 if a.dtype != np.int16 else np.int32
    made: dict[str, Callable[[], Any]] = {
        "dtype": lambda: a.astype(np.float32).astype(other),
        "shape": lambda: np.zeros((*a.shape[:-1], a.shape[-1] + 1), a.dtype),
        "rank": lambda: a[None],
        "list": a.tolist,
        "none": lambda: None,
        "object": object,
        "masked": lambda: np.ma.masked_array(a, np.zeros(a.shape, bool)),
        "swapped bytes": lambda: a.astype(a.dtype.newbyteorder(">")) if a.dtype.itemsize > 1 else a.tolist(),
    }
    return made[how]()


@judges("calls")
def call(case: Data, report: Report) -> Verdict:
    """Judge one call."""
    report("compiling")
    kernel, constants = _compiled(case["kernel"], case["constant"])
    expr = kernel.artifact.expression
    changing = [t for t in expr.inputs if t.name not in constants]
    rng = np.random.default_rng(case["seed"])
    arrays, values, keep, wrong = [], {n: np.asarray(a) for n, a in constants.items()}, [], False
    for t, layout in zip(changing, case["inputs"], strict=False):
        a = filled(t.shape, t.dtype, rng, case["special"])
        if layout in FALSE:
            wrong = True
            if layout == "extra":
                arrays += [a, a]
            elif layout != "missing":
                arrays.append(_false(a, layout))
            continue
        held, owner = _held(a, layout)
        keep.append(owner)
        values[t.name] = np.asarray(held) if layout != "torch" else a
        arrays.append(held)
    out, wrong_out = _out(case["out"], expr.output_tensors[0], arrays, keep)
    report("running a call")
    try:
        results = _called(kernel, arrays, out, case["threads"] if out is None else 1)
    except Exception as error:  # noqa: BLE001
        verdict = refusal(error, "call")
        if verdict.kind == REFUSED and not (wrong or wrong_out):
            return Verdict(WRONG, f"a right call refused: {verdict.message}")
        return verdict
    if wrong or wrong_out:
        return Verdict(WRONG, f"a call with {case['inputs']}, out={case['out']} was taken")
    return _right(case["kernel"], expr, values, results)


def _out(how: str, t: Any, arrays: Sequence[Any], keep: list[Any]) -> tuple[Any, bool]:
    dtype = numpy_dtype(t.dtype)
    plain = np.empty(t.shape, dtype)
    if how == "absent":
        return None, False
    if how in ("given", "tuple"):
        return (plain if how == "given" else (plain,)), False
    if how == "guarded":
        keep.append(Guarded(t.shape, t.dtype))
        return keep[-1].array, False
    if how == "overlaps input":
        same = [a for a in arrays if isinstance(a, np.ndarray) and a.shape == t.shape and a.dtype == dtype]
        same = [a for a in same if a.flags.c_contiguous and a.flags.writeable and a.flags.aligned]
        return (same[0], True) if same else (None, False)
    made = {
        "strided out": lambda: np.empty((*t.shape[:-1], 2 * t.shape[-1]), dtype)[..., ::2],
        "misaligned out": lambda: np.zeros(plain.nbytes + 1, np.uint8)[1:].view(dtype).reshape(t.shape),
        "wrong shape out": lambda: np.empty((*t.shape, 1), dtype),
        "short": lambda: (),
        "wrong dtype out": lambda: np.empty(t.shape, np.int16 if dtype != np.int16 else np.int32),
        "readonly out": lambda: _held(plain, "readonly")[0],
        "same twice": lambda: (plain, plain),
    }[how]()
    harmless = (how == "misaligned out" and dtype.itemsize == 1) or (how == "strided out" and t.shape[-1] == 1)
    return made, not harmless


def _called(kernel: Any, arrays: Sequence[Any], out: Any, threads: int) -> list[np.ndarray]:
    if threads == 1:
        found = kernel(*arrays, out=out)
        return [np.asarray(found[0] if isinstance(found, tuple) else found)]
    results: list[Any] = [None] * threads

    def work(n: int) -> None:
        try:
            results[n] = kernel(*arrays)
        except Exception as error:  # noqa: BLE001 - raised again below
            results[n] = error

    team = [threading.Thread(target=work, args=(n,)) for n in range(threads)]
    for t in team:
        t.start()
    for t in team:
        t.join()
    for r in results:
        if isinstance(r, Exception):
            raise r
    return [np.asarray(r) for r in results]


def _right(name: str, expr: Any, values: dict[str, np.ndarray], results: Sequence[np.ndarray]) -> Verdict:
    wide = [values[t.name].astype(np.float64) for t in expr.inputs]
    t = expr.output_tensors[0]
    eps = {"float64": 1e-13, "float32": 1e-4, "float16": 2e-3, "bfloat16": 2e-2}.get(t.dtype, 0.0)
    with np.errstate(all="ignore"):
        wanted = np.asarray(KERNELS[name][2](*wide))
        for got in results:
            value = got.astype(np.float64)
            near = np.abs(value - wanted) <= eps * (1 + np.abs(np.where(np.isfinite(wanted), wanted, 0)))
            bad = ~(near | (value == wanted) | (np.isnan(wanted) & np.isnan(value)))
            if bad.any():
                at = tuple(int(x) for x in np.argwhere(bad)[0])
                return Verdict(WRONG, f"{name}: {list(at)}: expected {wanted[at]!r}, got {value[at]!r}")
    return Verdict(OK)
