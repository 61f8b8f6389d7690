"""Ready operators with whatever their signatures take.

A new operator, and a new parameter, is drawn without a line here.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.fuzz.arrays import inputs_of
from tests.fuzz.cases import compiling, generator
from tests.fuzz.draw import Limits
from tests.fuzz.interpret import EPSILON
from tests.fuzz.judge import Judge, Report, Runs, judges, on_cpu
from tests.fuzz.language import DTYPES, FLOATS, Data
from tests.fuzz.verdict import OK, WRONG, Verdict, refusal

#: Values that no argument should take for granted, by the name a case has for them.
HOSTILE: dict[str, Any] = {
    "huge": 10**400,
    "digits": 10**5000,
    "large": 2**40,
    "limit": 2**31 - 1,
    "minus": -1,
    "zero": 0,
    "none": None,
    "true": True,
    "nan": math.nan,
    "infinity": math.inf,
    "half": 0.5,
    "text": "x",
    "long": "x" * 100_000,
    "number": "1e400",
    "empty": [],
    "nested": [[1, 2], [3]],
    "pair": [0, 1],
    "mapping": {"a": 1},
    "call": "clip(0, 1e300)",
    "digits call": f"clip(0, {'9' * 400})",
}
#: What one operator may read and write here; larger ones are constructed only.
_MOST_BYTES, _MOST_POINTS = 1 << 22, 1 << 22
_JUMPS = re.compile(r"floor|ceil|round|trunc")


def _extents(name: str) -> st.SearchStrategy[Any]:
    kernel = name.startswith("k") and len(name) > 1
    return st.sampled_from((1, 2, 3, 5) if kernel else (4, 1, 2, 3, 5, 7, 8, 9, 13, 16, 17, 31, 32, 33))


def _words(function: Callable[..., Any], name: str) -> tuple[str, ...]:
    """Return the strings the documentation of a parameter names."""
    text = inspect.getdoc(function) or ""
    about = re.search(rf"^{name}\b[^\n]*\n((?:    .*\n?)+)", text, re.M)
    found = re.findall(r"``\"?([A-Za-z_]\w*)\"?``|\"(\w+)\"", about[1] if about else "")
    return tuple(dict.fromkeys(a or b for a, b in found))


def _functions() -> st.SearchStrategy[str]:
    from roller.ops.elementwise_functions import ELEMENT_FUNCTIONS

    plain = [n for n, f in ELEMENT_FUNCTIONS.items() if f.parameters == 0]
    return st.sampled_from(("relu", "add", *plain, "clip(-0.5, 0.75)", "leaky_relu(0.1)"))


def parameter(function: Callable[..., Any], p: inspect.Parameter) -> st.SearchStrategy[Any]:
    """Return what a parameter of an operator may be, by its name, annotation, default and documentation."""
    kind = str(p.annotation)
    pair = st.lists(st.integers(1, 3), min_size=2, max_size=2)
    if p.name.endswith("dtype"):
        return st.sampled_from((p.default,) * 6 + DTYPES)
    if p.name == "epilogue":
        return st.lists(st.one_of(st.just("bias"), _functions()), max_size=3)
    if p.name.endswith("layout"):
        blocked = ("NCHW4c", "NCHW8c") if p.default == "NCHW" else ()
        return st.sampled_from(
            (
                p.default,
                p.default,
                *(_words(function, p.name) or ()),
                *blocked,
                *(("NHWC",) if p.default == "NCHW" else ("HWIO", "OHWI")),
            )
        )
    if kind == "bool":
        return st.booleans()
    if kind == "float":
        return st.sampled_from((p.default, 1e-3, 0.5))
    if kind.startswith("Sequence[str]"):
        return st.lists(_functions(), min_size=1, max_size=3)
    if kind.startswith("Sequence[Sequence"):
        return st.just([])
    if kind.startswith("Sequence[int]"):
        if p.name == "shape" or p.default is inspect.Parameter.empty:
            return st.lists(_extents(p.name), min_size=1, max_size=4)
        return st.one_of(st.none(), st.lists(st.integers(-3, 2), min_size=1, max_size=2, unique=True))
    if kind.startswith("int | tuple"):
        base = st.integers(0 if p.name == "padding" else 1, 2)
        four = [st.lists(st.integers(0, 2), min_size=4, max_size=4)] if "..." in kind else []
        return st.one_of(st.just(p.default), base, pair, *four)
    if kind == "int | None":
        return st.one_of(st.none(), st.integers(1, 4))
    if kind == "int":
        if p.default is inspect.Parameter.empty:
            return _extents(p.name)
        return st.sampled_from((p.default, p.default, 1, 2, 3, -1 if p.default < 0 else 4))
    words = _words(function, p.name)
    return st.sampled_from(words or ("sum", "max"))


@st.composite
def call_cases(draw: Any, hostile: bool = True) -> Data:
    """Draw a call of a ready operator; one in six has an argument of a kind that must be refused in words."""
    from roller.ops import REGISTRY

    name = draw(st.sampled_from(sorted(REGISTRY)))
    function = REGISTRY[name]
    parameters = inspect.signature(function).parameters.values()
    arguments = {p.name: draw(parameter(function, p)) for p in parameters}
    if arguments.get("groups", 1) > 1:
        arguments |= {n: arguments[n] * arguments["groups"] for n in ("c", "f") if n in arguments}
    wrong: dict[str, str] = {}
    if hostile and draw(st.integers(0, 5)) == 5:
        wrong[draw(st.sampled_from(sorted(arguments)))] = draw(st.sampled_from(sorted(HOSTILE)))
    return {"operator": name, "arguments": arguments, **({"hostile": wrong} if wrong else {})}


@generator("operators")
@st.composite
def operator_cases(draw: Any, limits: Limits) -> Data:
    """Draw a ready operator for this machine's processor."""
    return {**draw(call_cases()), **draw(compiling([], 8))}


def _tuples(value: Any) -> Any:
    return tuple(_tuples(v) for v in value) if isinstance(value, list) else value


def keywords(case: Data) -> dict[str, Any]:
    """Return the arguments of a case's call."""
    return {
        **{k: _tuples(v) for k, v in case["arguments"].items()},
        **{k: HOSTILE[v] for k, v in case.get("hostile", {}).items()},
    }


def built(case: Data) -> tuple[Any, Verdict | None]:
    """Return the expression of a case's operator, or the verdict where there is none to run."""
    import roller
    from roller.ops import REGISTRY

    try:
        expr = REGISTRY[case["operator"]](**keywords(case))
        expr.key  # noqa: B018 - what is made on first use may fail too
    except Exception as error:  # noqa: BLE001
        return None, refusal(error, "operator")
    if expr.compulsory_bytes > _MOST_BYTES or sum(s.points for s in expr.stages) > _MOST_POINTS:
        try:
            roller.construct(expr, case.get("device", "cpu"), 1)
        except Exception as error:  # noqa: BLE001
            return None, refusal(error, "construct")
        return None, Verdict(OK, "constructed only")
    return expr, None


@judges("operators")
def operator(case: Data, report: Report) -> Verdict:
    """Judge a ready operator on this machine's processor."""
    return ready_operator(case, lambda expr, arrays, judge: on_cpu(case, expr, arrays, judge, report))


def ready_operator(case: Data, run: Runs) -> Verdict:
    """Build the operator of a case, and have its kernels run on its arrays and judged by NumPy."""
    expr, verdict = built(case)
    if verdict is not None:
        return verdict
    arrays = inputs_of([(t.name, t.shape, t.dtype) for t in expr.inputs], case["seed"], case.get("special", False))
    found = reference_judge(case, expr, arrays)
    return found if isinstance(found, Verdict) else run(expr, arrays, found)


def _moved(case: Data, expr: Any, given: Sequence[np.ndarray], meant: np.ndarray, eps: float) -> np.ndarray:
    """Return how far outputs move where inputs are off by a rounding: the inverse of a sum near zero moves far."""
    rng, far = np.random.default_rng(case["seed"]), np.zeros(meant.shape)

    def near(a: np.ndarray) -> np.ndarray:
        return (a * (1 + eps * rng.uniform(-1, 1, a.shape))).astype(a.dtype) if a.dtype.kind == "f" else a

    for _ in range(2):
        with np.errstate(all="ignore"):
            far = np.fmax(far, np.abs(np.asarray(expr.evaluate([near(a) for a in given])[0], np.float64) - meant))
    return np.where(np.isfinite(far), far, 0.0)


def reference_judge(case: Data, expr: Any, arrays: Mapping[str, np.ndarray]) -> Judge | Verdict:
    """Return the judge of a case's outputs: NumPy by the arguments alone, within what rounding may make of it.

    Where the expression itself computes something else, that is the verdict.
    """
    from roller.expr.scalar import instruction_mix
    from tests.ops import numpy_reference

    text = str(case["arguments"])
    given = [a.astype(np.float32) if a.dtype.itemsize < 4 and a.dtype.name in FLOATS else a for a in arrays.values()]
    with np.errstate(all="ignore"):
        try:
            wanted = numpy_reference.compute(case["operator"], keywords(case), given)
        except Exception:  # noqa: BLE001 - what the reference does not know is judged by the expression
            wanted = None
        meant = expr.evaluate(given)[0]
    output = expr.output_tensors[0]
    if wanted is None or case.get("special") or "float" not in output.dtype:
        wanted = meant  # integers: the reference does not say where they wrap
    dtypes = [t.dtype for t in expr.tensors.values()] + [s.acc_dtype for s in expr.stages]
    eps = max((EPSILON[d] for d in dtypes if d in EPSILON), default=0.0)
    terms = max(s.points // max(1, math.prod(s.output.shape)) for s in expr.stages)
    moved = np.zeros(()) if not eps else _moved(case, expr, given, np.asarray(meant), eps)
    # A function's rounding next to a whole number, or beyond the integers, changes what an integer output holds.
    cut = "float" not in output.dtype and any("special" in instruction_mix(s.body, None) for s in expr.stages)
    jumps = bool(_JUMPS.search(text)) or bool(case.get("special")) or cut

    def differs(got: np.ndarray, factor: float) -> str:
        value, ref = got.astype(np.float64), np.asarray(wanted).astype(np.float64)
        if value.shape != ref.shape:
            return f"shape {value.shape}, not {ref.shape}"
        if jumps:
            return ""
        finite = np.isfinite(ref) & (np.abs(ref) < 6e4 if eps > 2.0**-20 else np.abs(ref) < 1e30)
        scale = float(np.abs(ref[finite]).max(initial=1.0))
        near = factor * eps * (1 + math.sqrt(terms)) * np.maximum(np.abs(ref), scale) + min(factor, 16.0) * moved
        bad = finite & ~(np.abs(value - ref) <= near) if eps else value != ref
        if not bad.any():
            return ""
        at = tuple(int(x) for x in np.argwhere(bad)[0])
        return f"{int(bad.sum())} of {bad.size} elements, first {list(at)}: expected {ref[at]!r}, got {value[at]!r}"

    why = differs(meant, 64.0)
    if why:
        return Verdict(WRONG, f"expression of {case['operator']}: {why}")

    def judge(outputs: Sequence[np.ndarray]) -> str:
        return differs(np.asarray(outputs[0]), 256.0)

    return judge
