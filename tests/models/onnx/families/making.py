"""Parts of families besides :class:`tests.models.onnx.random_values.Maker`: inferred types, bodies, several judges."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.models.onnx.random_values import Made, Maker

KINDS = {
    "float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16,
    "float64": TensorProto.DOUBLE, "int64": TensorProto.INT64, "int32": TensorProto.INT32, "int16": TensorProto.INT16,
    "int8": TensorProto.INT8, "uint8": TensorProto.UINT8, "uint16": TensorProto.UINT16, "uint32": TensorProto.UINT32,
    "uint64": TensorProto.UINT64, "bool": TensorProto.BOOL,
}  # fmt: skip


class FamilyMaker(Maker):
    """A maker whose nodes may be any operators of an operator set: their types are inferred.

    ``judged`` are the nodes that tell what is right: those of the model, unless a family knows a plainer way to say so.
    """

    def __init__(self, seed: int, opset: int) -> None:
        """Start without inputs."""
        self.rng = np.random.default_rng(seed)
        self.opset = opset
        self.nodes: list[onnx.NodeProto] = []
        self.judged: list[onnx.NodeProto] = []
        self.constants: dict[str, np.ndarray] = {}
        self.feeds: dict[str, np.ndarray] = {}
        self.pool: list[Made] = []
        self.extra: list[str] = []
        self.dims = [int(self.rng.choice([1, 2, 3, 4, 5, 7])) for _ in range(4)]

    def add(self, op: str, inputs: list[str], *outputs: Made, **attributes) -> None:
        """Add a node of the general generator."""
        before = len(self.nodes)
        super().add(op, inputs, *outputs, **attributes)
        self.judged += self.nodes[before:]

    def reals(self, shape: tuple[int, ...], dtype: str = "float32") -> np.ndarray:
        """Return normally distributed numbers."""
        return np.asarray(self.rng.standard_normal(shape), _numpy(dtype))

    def exact(self, shape: tuple[int, ...], dtype: str = "float32") -> np.ndarray:
        """Return multiples of a quarter, small integers, or truths."""
        if dtype == "bool":
            return np.asarray(self.rng.random(shape) < 0.5)
        floats = dtype in ("float32", "float16", "bfloat16", "float64")
        found = self.rng.integers(0 if dtype[0] == "u" else -6, 7, shape)
        return np.asarray(found / 4 if floats else found, _numpy(dtype))

    def put(self, array: np.ndarray, constant: bool | None = None, exact: bool = True) -> str:
        """Add an array as an input or a constant (one of them at random) and return its name."""
        array = np.asarray(array)
        name = f"k{len(self.feeds) + len(self.constants)}"
        if self.flip(0.4) if constant is None else constant:
            self.constants[name] = array
        else:
            self.feeds[name] = array
            if array.dtype.name in KINDS:
                size = 8.0 if exact else None
                self.pool.append(Made(name, array.shape, array.dtype.name, size, int(array.dtype.kind == "f")))
        return name

    def value(
        self, shape: tuple[int, ...], dtype: str = "float32", exact: bool = False, constant: bool | None = None
    ) -> str:
        """Return the name of a value of a type: one that is there already, or a new one."""
        if self.flip(0.35) and constant is None:
            alike = [v for v in self.pool if (v.shape, v.dtype) == (tuple(shape), dtype) and (v.size or not exact)]
            if alike:
                return alike[-1].name
        floats = dtype in ("float32", "float16", "bfloat16", "float64")
        return self.put(self.exact(shape, dtype) if exact or not floats else self.reals(shape, dtype), constant, exact)

    def node(self, op: str, inputs: list[str], outputs: int | list[bool] = 1, exact: bool = False, judged: bool = True,
             domain: str = "", **attributes) -> list[str]:  # fmt: skip
        """Add a node and return its outputs; those that are not wanted are left out."""
        wanted = [True] * outputs if isinstance(outputs, int) else outputs
        number = len(self.nodes) + len(self.judged)
        names = [f"n{number}_{op.lower()}{k}" if w else "" for k, w in enumerate(wanted)]
        while names and not names[-1]:
            names.pop()
        made = helper.make_node(op, inputs, names, domain=domain, **attributes)
        for name, declared in self.inferred(made).items():
            shape = tuple(d.dim_value for d in declared.tensor_type.shape.dim)
            known = declared.tensor_type.HasField("shape") and all(
                d.HasField("dim_value") for d in declared.tensor_type.shape.dim
            )
            kind = next((k for k, v in KINDS.items() if v == declared.tensor_type.elem_type), None)
            if known and min(shape, default=0) < 0:
                raise LookupError
            if known and kind is not None:
                if int(np.prod(shape)) > 20000:
                    raise LookupError
                self.pool.append(Made(name, shape, kind, 64.0 if exact else None, 1))
        self.nodes.append(made)
        if judged:
            self.judged.append(made)
        return names

    def judge(self, op: str, inputs: list[str], outputs: list[str], **attributes) -> list[str]:
        """Add a node to the judging model alone."""
        self.judged.append(helper.make_node(op, inputs, outputs, **attributes))
        return outputs

    def shape_of(self, name: str) -> tuple[int, ...]:
        """Return the shape of a value that is known."""
        found = self.constants.get(name, self.feeds.get(name))
        return tuple(found.shape) if found is not None else next(v.shape for v in self.pool if v.name == name)

    def inferred(self, node: onnx.NodeProto) -> dict[str, onnx.TypeProto]:
        """Return the types of a node's outputs, as far as they are inferred; ``LookupError`` where it cannot be."""
        typed = {v.name: (v.dtype, v.shape) for v in self.pool}
        typed |= {n: (a.dtype.name, a.shape) for n, a in self.feeds.items()}
        given = [n for n in dict.fromkeys([*node.input, *_outer(node)]) if n]
        if any(n not in typed and n not in self.constants for n in given):
            raise LookupError
        ins = [helper.make_tensor_value_info(n, KINDS[typed[n][0]], typed[n][1]) for n in given if n in typed]
        held = [numpy_helper.from_array(np.asarray(self.constants[n]), n) for n in given if n in self.constants]
        outs = [onnx.ValueInfoProto(name=n) for n in node.output if n]
        graph = helper.make_graph([node], "node", ins, outs, held)
        proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=8)
        try:
            found = onnx.shape_inference.infer_shapes(proto, strict_mode=True, data_prop=True)
        except onnx.shape_inference.InferenceError as why:
            raise LookupError(str(why)) from None
        return {o.name: o.type for o in found.graph.output}


def _outer(node: onnx.NodeProto) -> list[str]:
    """Return what the bodies of a node read from around it."""
    found: list[str] = []
    for a in node.attribute:
        if a.type == onnx.AttributeProto.GRAPH:
            inner = {i.name for i in a.g.input} | {t.name for t in a.g.initializer}
            for n in a.g.node:
                found += [i for i in [*n.input, *_outer(n)] if i and i not in inner]
                inner |= set(n.output)
            found += [o.name for o in a.g.output if o.name not in inner]
    return found


def _numpy(dtype: str) -> np.dtype:
    return np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)
