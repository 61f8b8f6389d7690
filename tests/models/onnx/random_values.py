"""What random models are made of: values that are known to be exact or rounded, and arithmetic on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import onnx
from onnx import TensorProto, helper

TYPES = {"float32": TensorProto.FLOAT, "int64": TensorProto.INT64, "int32": TensorProto.INT32,
          "bool": TensorProto.BOOL, "uint8": TensorProto.UINT8, "int8": TensorProto.INT8}  # fmt: skip
#: Elements of one value at most.
_MOST = 4096


@dataclass(frozen=True)
class Made:
    """A value of a model; ``size`` bounds it where it is exact, ``None`` where it has been rounded."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    size: float | None = 1.0
    quarters: int = 1  # it is a multiple of a quarter to this power


class Maker:
    """Adds random nodes to a model."""

    def __init__(self, seed: int, empty: float = 0.03) -> None:
        """Start with a few inputs and constants."""
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, np.ndarray] = {}
        self.feeds: dict[str, np.ndarray] = {}
        self.pool: list[Made] = []
        self.dims = [int(self.rng.choice([1, 2, 3, 4, 5, 8])) for _ in range(4)]
        if self.rng.random() < empty:
            self.dims[int(self.rng.integers(4))] = 0
        for _ in range(int(self.rng.integers(1, 4))):
            self.feed()
        for _ in range(int(self.rng.integers(0, 3))):
            self.pool.append(self.constant(self.shape()))

    def flip(self, chance: float = 0.5) -> bool:
        """Return whether a coin falls on its head."""
        return bool(self.rng.random() < chance)

    def one(self, choices):
        """Return one of some things."""
        return choices[int(self.rng.integers(len(choices)))]

    def shape(self, rank: int | None = None) -> tuple[int, ...]:
        """Return a random shape."""
        rank = int(self.rng.choice([0, 1, 2, 3, 4], p=[0.06, 0.14, 0.25, 0.25, 0.3])) if rank is None else rank
        return tuple(1 if self.flip(0.12) else self.one(self.dims) for _ in range(rank))

    def array(self, shape: tuple[int, ...], dtype: str = "float32") -> np.ndarray:
        """Return random elements: multiples of a quarter between -1 and 1, or small integers."""
        if dtype == "bool":
            return np.asarray(self.rng.random(shape) < 0.5)
        low = 0 if dtype == "uint8" else -4
        found = self.rng.integers(low, 5, shape)
        return np.asarray(found / 4 if dtype == "float32" else found, dtype)

    def feed(self) -> None:
        """Add an input."""
        name, shape = f"x{len(self.feeds)}", self.shape()
        dtype = self.one(["float32"] * 8 + ["int64", "int32", "bool"])
        self.feeds[name] = self.array(shape, dtype)
        self.pool.append(Made(name, shape, dtype, 1.0 if dtype == "float32" else 4.0, int(dtype == "float32")))

    def constant(self, shape: tuple[int, ...], dtype: str = "float32") -> Made:
        """Add a constant, or find one again."""
        alike = [n for n, a in self.constants.items() if a.shape == shape and a.dtype.name == dtype and n[0] == "c"]
        name = self.one(alike) if alike and self.flip(0.4) else f"c{len(self.constants)}"
        self.constants.setdefault(name, self.array(shape, dtype))
        return Made(name, shape, dtype, 1.0 if dtype == "float32" else 4.0, int(dtype == "float32"))

    def integers(self, *values: int) -> str:
        """Add a constant of shapes, axes, and the like."""
        name = f"i{len(self.constants)}"
        self.constants[name] = np.asarray(values, np.int64)
        return name

    def pick(self, accepts: Callable[[Made], bool] = lambda _: True, dtypes: tuple[str, ...] = ("float32",)) -> Made:
        """Return a value made so far, the latest more often; raises ``LookupError`` where there is none."""
        found = [v for v in self.pool if v.dtype in dtypes and accepts(v)]
        if not found:
            raise LookupError
        return found[-1 - min(int(self.rng.exponential(2.0)), len(found) - 1)]

    def add(self, op: str, inputs: list[str], *outputs: Made, **attributes) -> None:
        """Add a node; refuse what is big."""
        if any(int(np.prod(o.shape)) > _MOST for o in outputs):
            raise LookupError
        named = [replace(o, name=f"v{len(self.pool) + k}_{op.lower()}") for k, o in enumerate(outputs)]
        named = [v if v.size is None or (v.size < 4.0**6 and v.quarters < 6) else replace(v, size=None) for v in named]
        self.nodes.append(helper.make_node(op, inputs, [v.name for v in named], **attributes))
        self.pool += named

    def like(self, shape: tuple[int, ...], dtype: str = "float32") -> Made:
        """Return a value that is broadcast to a shape, or that a shape is broadcast to."""

        def meets(v: Made) -> bool:
            return all(a == b or 1 in (a, b) for a, b in zip(v.shape[::-1], shape[::-1], strict=False))

        if self.flip(0.6):
            try:
                return self.pick(meets, (dtype,))
            except LookupError:
                pass
        part = shape[int(self.rng.integers(0, len(shape) + 1)) :]
        return self.constant(tuple(1 if self.flip(0.2) else d for d in part), dtype)


def both(*values: Made) -> tuple[float, int] | None:
    if any(v.size is None for v in values):
        return None
    return max(v.size for v in values), max(v.quarters for v in values)


def unary(m: Maker) -> None:
    v = m.pick()
    op = m.one(
        [
            "Relu",
            "Neg",
            "Abs",
            "Identity",
            "Tanh",
            "Sigmoid",
            "Exp",
            "Sqrt",
            "Erf",
            "LeakyRelu",
            "HardSigmoid",
            "Clip",
            "Sign",
            "Floor",
            "Round",
            "Reciprocal",
            "Softplus",
            "HardSwish",
            "Ceil",
            "Sin",
        ]
    )
    inputs, at, out = [v.name], {}, v
    if op in ("Sign", "Floor", "Round", "Ceil"):
        if v.size is None:
            raise LookupError
    elif op == "Clip":
        m.constants.update({"lo": np.float32(-0.5), "hi": np.float32(0.75)})
        inputs += m.one([["lo", "hi"], ["lo"], ["", "hi"]])
    elif op == "Exp":
        m.add("Tanh", [v.name], replace(v, size=None))
        inputs, out = [m.pool[-1].name], replace(v, size=None)
    elif op in ("Sqrt", "Reciprocal"):
        m.add("Sigmoid", [v.name], replace(v, size=None))
        inputs, out = [m.pool[-1].name], replace(v, size=None)
    elif op not in ("Relu", "Neg", "Abs", "Identity"):
        out = replace(v, size=None)
    m.add(op, inputs, out, **at)


def binary(m: Maker) -> None:
    dtype = m.one(["float32"] * 6 + ["int64", "int32"])
    a = m.pick(dtypes=(dtype,))
    b = a if m.flip(0.1) else m.like(a.shape, dtype)
    if m.flip():
        a, b = b, a
    op = m.one(["Add", "Add", "Sub", "Mul", "Max", "Min", "Div", "Mod"])
    shape, known = np.broadcast_shapes(a.shape, b.shape), both(a, b)
    if op == "Mod" and (dtype == "float32" or known is None):
        op = "Add"
    if op in ("Div", "Mod"):  # by what is never nought
        if dtype != "float32":
            b = m.constant(b.shape if len(b.shape) <= len(shape) else (), dtype)
            m.constants[f"d{b.name}"] = np.where(m.constants[b.name] == 0, 3, m.constants[b.name]).astype(dtype)
            if known is None:
                raise LookupError
            out = Made("", np.broadcast_shapes(a.shape, b.shape), dtype, max(a.size, 4.0), 0)
            m.add(op, [a.name, f"d{b.name}"], out)
            return
        m.add("Sigmoid", [b.name], replace(b, size=None))
        m.add(op, [a.name, m.pool[-1].name], Made("", shape, dtype, None))
        return
    out = Made("", shape, dtype, None)
    if known is not None:
        out = replace(out, size=known[0] * 2, quarters=known[1])
        if op == "Mul":
            out = replace(out, size=a.size * b.size, quarters=a.quarters + b.quarters)
    elif dtype != "float32":
        raise LookupError
    m.add(op, [a.name, b.name], out)


def compare(m: Maker) -> None:
    dtype = m.one(["float32", "float32", "float32", "int64", "int32"])
    a = m.pick(lambda v: v.size is not None, dtypes=(dtype,))
    b = m.like(a.shape, dtype)
    if b.size is None:
        raise LookupError
    op = m.one(["Less", "Greater", "Equal", "LessOrEqual", "GreaterOrEqual"])
    m.add(op, [a.name, b.name], Made("", np.broadcast_shapes(a.shape, b.shape), "bool", 1.0, 0))


def logical(m: Maker) -> None:
    a = m.pick(dtypes=("bool",))
    if m.flip(0.3):
        m.add("Not", [a.name], a)
        return
    b = m.like(a.shape, "bool")
    m.add(
        m.one(["And", "Or", "Xor"]), [a.name, b.name], Made("", np.broadcast_shapes(a.shape, b.shape), "bool", 1.0, 0)
    )


def where(m: Maker) -> None:
    c = m.pick(dtypes=("bool",))
    a = m.like(c.shape)
    shape = np.broadcast_shapes(c.shape, a.shape)
    b = m.like(shape)
    known = both(a, b)
    out = Made("", np.broadcast_shapes(shape, b.shape), "float32", None)
    m.add("Where", [c.name, a.name, b.name], out if known is None else replace(out, size=known[0], quarters=known[1]))


def cast(m: Maker) -> None:
    v = m.pick(lambda v: v.size is not None and v.size < 100, dtypes=("float32", "bool", "int64", "int32"))
    to = m.one(["float32", "bool", "int64", "int32"])
    whole = v.dtype != "float32" or to == "float32"
    out = replace(v, dtype=to, size=max(v.size, 1.0), quarters=v.quarters if whole else 0)
    m.add("Cast", [v.name], out, to=TYPES[to])
