"""The JSON form of a TensorExpr: plain lists and dicts, versioned with the artifact that contains it."""

from __future__ import annotations

from typing import Any

from roller.errors import MALFORMED, ArtifactError
from roller.expr.scalar import Bound, Call, Cast, Const, Index, IndexValue, Load, Scalar, Term
from roller.expr.tensor_expr import Axis, Stage, Tensor, TensorExpr


def _index_to_list(i: Index) -> list[Any]:
    return [i.const, [[t.axis, t.coef, t.div, t.mod] for t in i.terms]]


def _scalar_to_list(n: Scalar) -> list[Any]:
    if isinstance(n, Const):
        value = n.value if abs(n.value) != float("inf") else ("inf" if n.value > 0 else "-inf")
        return ["const", value, n.dtype]
    if isinstance(n, Load):
        guard = [[_index_to_list(b.index), b.low, b.high] for b in n.guard]
        outside = n.outside if abs(n.outside) != float("inf") else ("inf" if n.outside > 0 else "-inf")
        return ["load", n.tensor, [_index_to_list(i) for i in n.index], guard, outside]
    if isinstance(n, IndexValue):
        return ["index", _index_to_list(n.index), n.dtype]
    if isinstance(n, Cast):
        return ["cast", n.dtype, _scalar_to_list(n.arg)]
    return ["call", n.fn, [_scalar_to_list(a) for a in n.args]]


def _tensor_to_list(t: Tensor) -> list[Any]:
    return [t.name, list(t.shape), t.dtype]


def expr_to_dict(expr: TensorExpr) -> dict[str, Any]:
    """Return ``expr`` as JSON-ready data; :func:`expr_from_dict` is the inverse."""
    return {
        "name": expr.name,
        "inputs": [_tensor_to_list(t) for t in expr.inputs],
        "stages": [
            {
                "output": _tensor_to_list(s.output),
                "axes": [[a.name, int(a.extent), a.kind] for a in s.axes],
                "store": [_index_to_list(i) for i in s.store],
                "body": _scalar_to_list(s.body),
                "combiner": s.combiner,
                "acc_dtype": s.acc_dtype,
            }
            for s in expr.stages
        ],
        "outputs": list(expr.outputs),
        "allow_padding": expr.allow_padding,
        **({} if expr.propagate_nan else {"propagate_nan": False}),
    }


def _index_from(d: Any) -> Index:
    return Index(tuple(Term(a, c, v, m) for a, c, v, m in d[1]), d[0])


def _scalar_from(d: Any) -> Scalar:
    kind = d[0]
    if kind == "const":
        return Const(float(d[1]) if isinstance(d[1], str) else d[1], d[2])
    if kind == "load":
        guard = tuple(Bound(_index_from(i), low, high) for i, low, high in d[3])
        return Load(d[1], tuple(_index_from(i) for i in d[2]), guard, float(d[4]))
    if kind == "index":
        return IndexValue(_index_from(d[1]), d[2])
    if kind == "cast":
        return Cast(d[1], _scalar_from(d[2]))
    if kind == "call":
        return Call(d[1], tuple(_scalar_from(a) for a in d[2]))
    raise ArtifactError(f"expression: unknown scalar node '{kind}'. The file is damaged or from a newer version.")


def _tensor_from(d: Any) -> Tensor:
    return Tensor(d[0], tuple(d[1]), d[2])


def expr_from_dict(data: dict[str, Any]) -> TensorExpr:
    """Rebuild a TensorExpr from :func:`expr_to_dict` data."""
    try:
        stages = tuple(
            Stage(
                _tensor_from(s["output"]),
                tuple(Axis(n, e, k) for n, e, k in s["axes"]),
                tuple(_index_from(i) for i in s["store"]),
                _scalar_from(s["body"]),
                s["combiner"],
                s["acc_dtype"],
            )
            for s in data["stages"]
        )
        inputs = tuple(_tensor_from(t) for t in data["inputs"])
        outputs, nan = tuple(data["outputs"]), data.get("propagate_nan", True)
        return TensorExpr(data["name"], inputs, stages, outputs, data["allow_padding"], nan)
    except MALFORMED as err:
        raise ArtifactError(f"expression: expected a serialised TensorExpr, got {err!r}. The file is damaged.") from err


def expr_to_nameless_dict(expr: TensorExpr) -> dict[str, Any]:
    """Return :func:`expr_to_dict` data with tensor and axis names replaced by their positions."""
    data = expr_to_dict(expr)
    names: dict[str, str] = {}
    for t in [*data["inputs"], *(s["output"] for s in data["stages"])]:
        names.setdefault(t[0], f"t{len(names)}")
    axes: dict[str, str] = {}
    for s in data["stages"]:
        for a in s["axes"]:
            axes.setdefault(a[0], f"x{len(axes)}")

    def index(i: list[Any]) -> list[Any]:
        # A sum has no order: terms are sorted so that two forms of one index are equal.
        return [i[0], sorted([axes.get(a, a), c, v, m] for a, c, v, m in i[1])]

    def scalar(n: list[Any]) -> list[Any]:
        if n[0] == "load":
            return ["load", names[n[1]], [index(i) for i in n[2]], [[index(i), lo, hi] for i, lo, hi in n[3]], n[4]]
        if n[0] == "index":
            return ["index", index(n[1]), n[2]]
        if n[0] == "cast":
            return ["cast", n[1], scalar(n[2])]
        return ["call", n[1], [scalar(a) for a in n[2]]] if n[0] == "call" else n

    return {
        "inputs": [[names[t[0]], t[1], t[2]] for t in data["inputs"]],
        "stages": [
            {
                **s,
                "output": [names[s["output"][0]], *s["output"][1:]],
                "axes": [[axes[a[0]], a[1], a[2]] for a in s["axes"]],
                "store": [index(i) for i in s["store"]],
                "body": scalar(s["body"]),
            }
            for s in data["stages"]
        ],
        "outputs": [names[o] for o in data["outputs"]],
        **{name: data[name] for name in ("allow_padding", "propagate_nan") if name in data},
    }
