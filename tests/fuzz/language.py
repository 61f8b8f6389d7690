"""Expressions as plain data: what a case says, in lists that JSON holds, and the TVM TE program of it.

An index is an integer, the name of an axis, or ``[op, a, b]`` with ``op`` of ``+ - * // %``. A scalar is one of::

    ["load", tensor, [index, ...]]           ["const", number, dtype]       ["position", index, dtype]
    ["cast", dtype, scalar]                  ["call", function, scalar, ...]
    ["choose", "if_then_else" | "Select", condition, scalar, scalar]

and a condition ``[op, index, index]`` with ``op`` of ``lt le gt ge eq ne``, ``["less", scalar, scalar]`` on data, or
``["all" | "any" | "not", condition, ...]``. A stage is a mapping with ``name``, ``axes`` and ``reduce`` (``[name,
extent]``
pairs), ``combine`` and ``body``. An expression has ``inputs`` (``[name, shape, dtype]``), ``stages`` and ``outputs``.

:mod:`tests.fuzz.interpret` computes the same in NumPy, from this description alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Data = Any

FLOATS = ("float32", "float16", "float64", "bfloat16", "float8_e4m3fn", "float8_e5m2")
INTEGERS = ("int32", "int8", "int64", "int16", "uint8")
DTYPES = (*FLOATS, *INTEGERS, "bool")
COMBINERS = ("sum", "max", "min", "prod")

#: Function: arguments, and whether it is of floats, of integers, or of both.
FUNCTIONS: dict[str, tuple[int, str]] = {
    **dict.fromkeys(("add", "sub", "mul", "max", "min"), (2, "both")),
    **dict.fromkeys(("neg", "abs"), (1, "both")),
    "div": (2, "float"),
    **dict.fromkeys(
        (
            "exp",
            "log",
            "log1p",
            "expm1",
            "sqrt",
            "rsqrt",
            "tanh",
            "erf",
            "sigmoid",
            "floor",
            "ceil",
            "trunc",
            "nearbyint",
            "sin",
            "cos",
            "tan",
            "sinh",
            "cosh",
            "asin",
            "acos",
            "atan",
            "asinh",
            "acosh",
            "atanh",
        ),
        (1, "float"),
    ),
    "power": (2, "float"),
    **dict.fromkeys(("truncdiv", "truncmod", "bitwise_and", "bitwise_or", "bitwise_xor"), (2, "int")),
}


def dtype_of(scalar: Data, dtypes: Mapping[str, str]) -> str:
    """Return the dtype of a scalar; operands of a function are of one dtype."""
    kind = scalar[0]
    if kind == "load":
        return dtypes[scalar[1]]
    if kind in ("const", "position"):
        return scalar[2]
    if kind == "cast":
        return scalar[1]
    return dtype_of(scalar[2] if kind == "call" else scalar[3], dtypes)


def dtypes_of(expression: Data) -> dict[str, str]:
    """Return the dtype of every tensor by name."""
    out = {name: dtype for name, _, dtype in expression["inputs"]}
    for stage in expression["stages"]:
        out[stage["name"]] = dtype_of(stage["body"], out)
    return out


def shapes_of(expression: Data) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor by name."""
    out = {name: tuple(shape) for name, shape, _ in expression["inputs"]}
    return out | {s["name"]: tuple(n for _, n in s["axes"]) for s in expression["stages"]}


def leaves(scalar: Data) -> list[Data]:
    """Return every node of a scalar and of the conditions in it."""
    out = [scalar]
    for part in scalar[1:]:
        if isinstance(part, list) and part and isinstance(part[0], str):
            out += leaves(part)
    return out


def live(expression: Data) -> Data:
    """Return the expression without stages and inputs that no output needs: a shrunk case says no more than it must."""
    wanted = set(expression["outputs"])
    stages = []
    for stage in reversed(expression["stages"]):
        if stage["name"] in wanted:
            stages.insert(0, stage)
            wanted |= {n[1] for n in leaves(stage["body"]) if n[0] == "load"}
    inputs = [i for i in expression["inputs"] if i[0] in wanted]
    return {"inputs": inputs, "stages": stages, "outputs": expression["outputs"]}


def as_te(expression: Data) -> list[Any]:
    """Return the te tensors of an expression, inputs first, as a user would write them."""
    from roller.te.compat import te

    tensors = {
        name: te.placeholder(tuple(shape), name=name, dtype=dtype) for name, shape, dtype in expression["inputs"]
    }
    for stage in expression["stages"]:
        tensors[stage["name"]] = _stage(stage, tensors)
    return [tensors[n] for n in (*(i[0] for i in expression["inputs"]), *expression["outputs"])]


def _stage(stage: Data, tensors: Mapping[str, Any]) -> Any:
    from roller.te.compat import te

    reduced = {name: te.reduce_axis((0, extent), name=name) for name, extent in stage["reduce"]}

    def body(*at: Any) -> Any:
        env = {name: var for (name, _), var in zip(stage["axes"], at, strict=True)}
        value = _scalar(stage["body"], env | {n: a.var for n, a in reduced.items()}, tensors)
        if not reduced:
            return value
        is_bool = dtype_of(stage["body"], {n: str(t.dtype) for n, t in tensors.items()}) == "bool"
        return _reducer(stage["combine"], is_bool)(value, axis=list(reduced.values()))

    return te.compute(tuple(n for _, n in stage["axes"]), body, name=stage["name"])


def _reducer(combiner: str, is_bool: bool) -> Callable[..., Any]:
    from roller.te.compat import te, tirx

    if is_bool and combiner in ("max", "min"):  # TVM's own have no least truth value
        fold, first = getattr(tirx, combiner), combiner == "min"
        return te.comm_reducer(lambda x, y: fold(x, y), lambda dtype: tirx.const(first, dtype), name=combiner)

    if combiner == "prod":
        return te.comm_reducer(lambda x, y: x * y, lambda dtype: tirx.const(1, dtype), name="prod")
    return {"sum": te.sum, "max": te.max, "min": te.min}[combiner]


def _index(index: Data, env: Mapping[str, Any]) -> Any:
    from roller.te.compat import tirx

    if isinstance(index, int):
        return tirx.const(index, "int32")
    if isinstance(index, str):
        return env[index]
    op, a, b = index[0], _index(index[1], env), _index(index[2], env)
    return {
        "+": lambda: a + b,
        "-": lambda: a - b,
        "*": lambda: a * b,
        "//": lambda: tirx.floordiv(a, b),
        "%": lambda: tirx.floormod(a, b),
    }[op]()


def _condition(c: Data, env: Mapping[str, Any], tensors: Mapping[str, Any]) -> Any:
    from roller.te.compat import tirx

    op = c[0]
    if op in ("all", "any"):
        return getattr(tirx, op)(*(_condition(x, env, tensors) for x in c[1:]))
    if op == "not":
        return tirx.Not(_condition(c[1], env, tensors))
    if op == "less":
        return _scalar(c[1], env, tensors) < _scalar(c[2], env, tensors)
    a, b = _index(c[1], env), _index(c[2], env)
    return {
        "lt": lambda: a < b,
        "le": lambda: a <= b,
        "gt": lambda: a > b,
        "ge": lambda: a >= b,
        "eq": lambda: a.equal(b),
        "ne": lambda: tirx.NE(a, b),
    }[op]()


def _scalar(s: Data, env: Mapping[str, Any], tensors: Mapping[str, Any]) -> Any:
    from roller.te.compat import tirx
    from roller.te.functions_near_zero import expm1

    kind = s[0]
    if kind == "load":
        value = tensors[s[1]](*(_index(i, env) for i in s[2]))
        return value.asobject() if hasattr(value, "asobject") else value
    if kind == "const":
        return tirx.const(s[1], s[2])
    if kind == "position":
        return _index(s[1], env).astype(s[2])
    if kind == "cast":
        return _scalar(s[2], env, tensors).astype(s[1])
    if kind == "choose":
        make = tirx.if_then_else if s[1] == "if_then_else" else tirx.Select
        return make(_condition(s[2], env, tensors), _scalar(s[3], env, tensors), _scalar(s[4], env, tensors))
    arguments = [_scalar(a, env, tensors) for a in s[2:]]
    plain = {
        "add": lambda a, b: a + b,
        "sub": lambda a, b: a - b,
        "mul": lambda a, b: a * b,
        "neg": lambda a: -a,
        "bitwise_and": lambda a, b: a & b,
        "bitwise_or": lambda a, b: a | b,
        "bitwise_xor": lambda a, b: a ^ b,
        "div": lambda a, b: tirx.div(a, b),
        "expm1": expm1,
    }
    return (plain.get(s[1]) or getattr(tirx, s[1]))(*arguments)
