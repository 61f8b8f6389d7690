"""Rewrites quantized models to arithmetic on stored integers, in one sweep over the nodes.

A value written by ``DequantizeLinear`` stays in integers: data movement moves the integers, a product with constant
weights becomes an integer sum with a bias and one scale, and a quantization to the current scale is dropped. Every
other reader gets its own ``DequantizeLinear``, so that kernels read 8-bit values. The result consists of ordinary ONNX
operators and of Roller's own integer products.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from roller.models.graph.model_graph import Node
from roller.models.onnx.integer_products import sums_fit_int32, weights_minus_zero_points
from roller.models.onnx.mutable_graph import MutableGraph
from roller.models.onnx.quantised.fold_quantisation_scales import ScaleFolding
from roller.models.onnx.quantised.integer_forms import (
    BYTES,
    IntegerForm,
    QuantisationParameters,
    parameters_of_quantisation_node,
)
from roller.models.onnx.quantised.integer_products_to_float_sums import rewrite_to_float_sums
from roller_runtime.plan.program_steps import Value

#: Operator set version of new nodes.
_VERSION = 21
#: Operators that move elements of their first input; their other inputs give positions or shapes.
_MOVES = frozenset((
    "DepthToSpace", "Expand", "Flatten", "Gather", "GatherElements", "Identity", "Reshape", "Slice", "SpaceToDepth",
    "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze",
))  # fmt: skip
#: Maximum number of elements of a constant that is dequantized while rewriting.
_MOST_ELEMENTS = 1 << 26
#: Relative tolerance between a bias's scale and the product of the operands' scales, both rounded to float32.
_BIAS_TOLERANCE = 1e-5


def rewrite_to_integers(draft: MutableGraph) -> bool:
    """Rewrite a graph in place; return whether it changed."""
    changed = rewrite_to_float_sums(draft)
    if not any(n.op in ("DequantizeLinear", "QLinearConv", "QLinearMatMul") for n in draft.nodes):
        return changed
    sweep = _IntegerRewriter(draft)
    for node in draft.nodes:
        sweep.take(node)
    draft.nodes = sweep.nodes
    sweep.scales.fold()
    return True


@dataclass
class _IntegerRewriter:
    """The nodes rewritten so far, and the integer forms of values."""

    draft: MutableGraph
    nodes: list[Node] = field(default_factory=list)
    forms: dict[str, IntegerForm] = field(default_factory=dict)
    readers: dict[str, list[Node]] = field(default_factory=dict)
    same: dict[str, str] = field(default_factory=dict)
    real: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for node in self.draft.nodes:
            for name in node.inputs:
                self.readers.setdefault(name, []).append(node)
        self.outputs = set(self.draft.outputs)
        self.scales = ScaleFolding(self.draft)

    # --- writing ---------------------------------------------------------------------------------

    def add(self, op: str, inputs: Sequence[str], like: Value, base: str, name: str = "", **attributes: Any) -> str:
        """Append an ONNX node and return its result: the value ``name``, or a new one named after ``base``."""
        result = name or self.draft.value(base, like)
        self.nodes.append(Node(op, tuple(inputs), (result,), attributes, f"{result}/{op.lower()}", "", _VERSION))
        return result

    def float_value(self, form: IntegerForm, name: str, target: str = "") -> str:
        """Return the name of a form's float value for one reader; it is ``target`` if that is given."""
        held, p = self.draft.constants.get(form.stored), form.parameters
        value = self.draft.values[name]
        if held is not None and held.size <= _MOST_ELEMENTS and not target:
            if name not in self.real:
                self.real[name] = self.draft.constant(f"{name}/real", p.real(held))
            return self.real[name]
        scale = self.draft.constant(f"{name}/scale", p.scale)
        zero = self.draft.constant(f"{name}/zero", p.zero)
        details = {} if p.axis is None else {"axis": p.axis}
        return self.add("DequantizeLinear", (form.stored, scale, zero), value, f"{name}/real", target, **details)

    # --- reading ---------------------------------------------------------------------------------

    def take(self, node: Node) -> None:
        """Append a node, or the nodes that replace it."""
        if any(n in self.same for n in node.inputs):
            node = replace(node, inputs=tuple(self.same.get(n, n) for n in node.inputs))
        rule = None if node.domain else _RULES.get(node.op)
        if rule is None or not rule(self, node):
            self.keep(node)
        for name in node.outputs:
            if name in self.outputs and name in self.forms:
                self.float_value(self.forms[name], name, name)

    def keep(self, node: Node) -> None:
        """Append a node unchanged, with float inputs."""
        inputs = tuple(self.float_value(self.forms[n], n) if n in self.forms else n for n in node.inputs)
        self.nodes.append(replace(node, inputs=inputs))

    def input_form(self, node: Node, position: int) -> IntegerForm | None:
        """Return the form of an input; ``None`` if it has none."""
        return self.forms.get(node.inputs[position]) if position < len(node.inputs) else None

    def stored(self, node: Node, name: str, dtype: str) -> str:
        """Return the name of a new integer value with the shape of the value ``name``."""
        value = self.draft.values[name]
        return self.draft.value(f"{name}/stored", replace(value, dtype=dtype))


def _try_skip_dequantisation(s: _IntegerRewriter, node: Node) -> bool:
    """Record the integer form of a value instead of dequantizing it."""
    p = parameters_of_quantisation_node(s.draft, node)
    if p is None:
        return False
    if p.zero.dtype == np.int32 and node.inputs[0] not in s.draft.constants:
        return False
    s.forms[node.outputs[0]] = IntegerForm(node.inputs[0], p)
    return True


def _try_drop_repeated_quantisation(s: _IntegerRewriter, node: Node) -> bool:
    """Drop a quantization whose input is already stored with its parameters."""
    p, form = parameters_of_quantisation_node(s.draft, node), s.input_form(node, 0)
    if p is None:
        return False
    if form is not None and form.parameters.same(p):
        if node.outputs[0] in s.outputs:
            s.add("Identity", (form.stored,), s.draft.values[node.outputs[0]], "", node.outputs[0])
        s.same[node.outputs[0]] = form.stored
        return True
    s.keep(node)
    s.scales.register_quantisation(s.nodes[-1], p)
    return True


def _try_move_integers(s: _IntegerRewriter, node: Node) -> bool:
    """Move the integers instead of the real numbers."""
    form = s.input_form(node, 0)
    if form is None or any(n in s.forms for n in node.inputs[1:]):
        return False
    p = form.parameters
    if p.axis is not None:
        return _try_transpose_weights(s, node, form)
    outputs = tuple(s.stored(node, n, p.zero.dtype.name) if n else "" for n in node.outputs)
    s.nodes.append(replace(node, inputs=(form.stored, *node.inputs[1:]), outputs=outputs))
    s.forms.update({n: IntegerForm(o, p) for n, o in zip(node.outputs, outputs, strict=True) if n})
    return True


def _try_transpose_weights(s: _IntegerRewriter, node: Node, form: IntegerForm) -> bool:
    """Transpose constant weights that have scales along an axis."""
    held, axis = s.draft.constants.get(form.stored), form.parameters.axis
    if held is None or node.op != "Transpose" or axis is None:
        return False
    order = tuple(node.attributes.get("perm", range(held.ndim - 1, -1, -1)))
    turned = s.draft.constant(f"{node.outputs[0]}/stored", np.ascontiguousarray(held.transpose(order)))
    s.forms[node.outputs[0]] = IntegerForm(turned, replace(form.parameters, axis=order.index(axis)))
    return True


def _try_max_pool_integers(s: _IntegerRewriter, node: Node) -> bool:
    """Take maxima of the integers, whose order is the same because scales are positive."""
    return len([n for n in node.outputs if n]) == 1 and _try_move_integers(
        s, replace(node, version=max(12, node.version))
    )


def _try_concat_integers(s: _IntegerRewriter, node: Node) -> bool:
    """Concatenate integers: directly if they share a scale, otherwise in the scale of the result's quantization."""
    found = [s.forms.get(n) for n in node.inputs]
    name = node.outputs[0]
    first = next((f for f in found if f is not None), None)
    if first is None or any(f is not None and f.parameters.axis is not None for f in found):
        return False
    p: QuantisationParameters | None = first.parameters
    parts = [f.stored for f in found if f is not None and p is not None and f.parameters.same(p)]
    if len(parts) < len(found):
        readers = s.readers.get(name, [])
        alone = len(readers) == 1 and readers[0].op == "QuantizeLinear" and name not in s.outputs
        p = parameters_of_quantisation_node(s.draft, readers[0]) if alone else None
        if p is None or p.axis is not None:
            return False
        parts = [_requantise(s, n, f, p, readers[0]) for n, f in zip(node.inputs, found, strict=True)]
    result = s.stored(node, name, p.zero.dtype.name)  # type: ignore[union-attr]
    s.nodes.append(replace(node, inputs=tuple(parts), outputs=(result,)))
    s.forms[name] = IntegerForm(result, p)  # type: ignore[arg-type]
    return True


def _requantise(s: _IntegerRewriter, name: str, form: IntegerForm | None, p: QuantisationParameters, like: Node) -> str:
    """Return a value as integers with the parameters ``p`` of the quantization ``like``."""
    if form is not None and form.parameters.same(p):
        return form.stored
    real = name if form is None else s.float_value(form, name)
    result = s.stored(like, name, p.zero.dtype.name)
    s.nodes.append(replace(like, inputs=(real, *like.inputs[1:]), outputs=(result,), name=f"{result}/quantizelinear"))
    s.scales.register_quantisation(s.nodes[-1], p)
    return result


# --- products -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _IntegerOperands:
    """Operands of an integer product: the input, the weights minus their zero points, and each column's scale."""

    x: IntegerForm
    weights: np.ndarray
    scale: np.ndarray


def _integer_operands(s: _IntegerRewriter, node: Node, axis: int, rank: int = 0) -> _IntegerOperands | None:
    """Return the operands of an integer product with constant weights (columns along ``axis``); otherwise ``None``."""
    x, w = s.input_form(node, 0), s.input_form(node, 1)
    held = None if w is None else s.draft.constants.get(w.stored)
    if x is None or w is None or held is None or x.parameters.axis is not None or (rank and held.ndim != rank):
        return None
    p = w.parameters
    if x.parameters.zero.dtype.name not in BYTES or (p.axis is not None and p.axis != axis % held.ndim):
        return None
    weights = weights_minus_zero_points(held, p.zero, axis)
    scale = p.scale.reshape(-1).astype(np.float64) * float(x.parameters.scale)
    return None if weights is None else _IntegerOperands(x, weights, scale)


def _try_append_integer_product(
    s: _IntegerRewriter, op: str, node: Node, o: _IntegerOperands, columns: tuple[int, ...], bias: str, axis: int
) -> bool:
    """Append a product as a scaled integer sum that includes an exact bias; return whether that is possible."""
    name, draft = node.outputs[0], s.draft
    whole = s.forms.get(bias)
    held = None if whole is None else draft.constants.get(whole.stored)
    exact = (
        whole is not None and held is not None and held.dtype == np.int32 and not whole.parameters.zero.any()
        and np.allclose(whole.parameters.scale.reshape(-1), o.scale, rtol=_BIAS_TOLERANCE, atol=0)
    )  # fmt: skip
    if not sums_fit_int32(o.weights, held if exact else None, axis):
        return False
    inputs = [o.x.stored, draft.constant(f"{name}/weights", o.weights)]
    inputs += [draft.constant(f"{name}/zero", o.x.parameters.zero), ""]
    if exact and held is not None:
        inputs.append(draft.constant(f"{name}/bias", held.reshape(-1)))
    value, attributes = draft.values[name], dict(node.attributes) if op == "ConvInteger" else {}
    total = draft.value(f"{name}/sum", value)
    s.nodes.append(Node(op, tuple(inputs), (total,), attributes, node.name, "roller", _VERSION))
    factor = s.scales.constant(f"{name}/scale", o.scale.reshape(columns if o.scale.size > 1 else ()))
    if exact or not bias:
        s.add("Mul", (total, factor), value, name, name)
        return True
    added = s.float_value(s.forms[bias], bias) if bias in s.forms else bias
    known = draft.constants.get(added)
    if known is not None:
        added = draft.constant(f"{name}/added", known.reshape(columns if known.size > 1 else ()))
    elif len(columns) > 1:
        shape = draft.constant(f"{name}/columns", np.array(columns, np.int64))
        like = replace(draft.values[bias], shape=(draft.values[bias].elements, *columns[1:]))
        added = s.add("Reshape", (added, shape), like, f"{name}/added")
    s.add("Add", (s.add("Mul", (total, factor), value, f"{name}/product"), added), value, name, name)
    return True


def _try_rewrite_convolution(s: _IntegerRewriter, node: Node) -> bool:
    o = _integer_operands(s, node, 0)
    columns = (-1, *(1,) * (len(s.draft.shape(node.outputs[0])) - 2))
    bias = node.inputs[2] if s.draft.has_input(node, 2) else ""
    return o is not None and _try_append_integer_product(s, "ConvInteger", node, o, columns, bias, 0)


def _try_rewrite_matmul(s: _IntegerRewriter, node: Node) -> bool:
    o = _integer_operands(s, node, 1, 2)
    return o is not None and _try_append_integer_product(s, "MatMulInteger", node, o, (-1,), "", 1)


def _try_rewrite_gemm(s: _IntegerRewriter, node: Node) -> bool:
    turned = bool(node.attributes.get("transB", 0))
    details = (node.attributes.get(k, d) for k, d in (("alpha", 1.0), ("beta", 1.0), ("transA", 0)))
    bias = node.inputs[2] if s.draft.has_input(node, 2) else ""
    plain = tuple(details) == (1.0, 1.0, 0) and (not bias or len(s.draft.shape(bias)) <= 1)
    o = _integer_operands(s, node, 0 if turned else 1, 2) if plain else None
    if o is None:
        return False
    o = replace(o, weights=np.ascontiguousarray(o.weights.T)) if turned else o
    return _try_append_integer_product(s, "MatMulInteger", node, o, (-1,), bias, 1)


def _make_qlinear_rule(op: str, weight_axis: int) -> Callable[[_IntegerRewriter, Node], bool]:
    """Return the rule that expands a ``QLinear`` product into dequantization, product and quantization."""

    def rule(s: _IntegerRewriter, node: Node) -> bool:
        draft, y = s.draft, node.outputs[0]
        if any(draft.constant_input(node, k) is None for k in (1, 2, 3, 4, 5, 6, 7)):
            return False
        bias = draft.constant_input(node, 8)
        if draft.has_input(node, 8) and bias is None:
            return False

        def real(position: int, like: str) -> str:
            return draft.value(f"{y}/{'xw'[position // 3]}", replace(draft.values[like], dtype="float32"))

        x, w, out = real(0, node.inputs[0]), real(3, node.inputs[3]), real(0, y)
        made = [
            Node("DequantizeLinear", node.inputs[:3], (x,), {}, f"{x}/dequantizelinear", "", _VERSION),
            Node("DequantizeLinear", node.inputs[3:6], (w,), {"axis": weight_axis}, f"{w}/dequantizelinear", "",
                 _VERSION),
        ]  # fmt: skip
        found = [parameters_of_quantisation_node(draft, n) for n in made]
        if (
            None in found
            or weights_minus_zero_points(draft.constants[node.inputs[3]], draft.constant_input(node, 5), weight_axis)
            is None
        ):
            return False
        operands = [x, w]
        if bias is not None:
            scale = (found[0].scale * found[1].scale).reshape(-1)  # type: ignore[union-attr]
            stored = draft.constant(f"{y}/bias", bias)
            operands.append(draft.value(f"{y}/added", replace(draft.values[stored], dtype="float32")))
            scale = np.broadcast_to(scale, bias.shape) if scale.size > 1 else scale.reshape(())
            parameters = QuantisationParameters(scale, np.zeros(scale.shape, np.int32), 0 if scale.ndim else None)
            s.forms[operands[2]] = IntegerForm(stored, parameters)
        made.append(Node(op, tuple(operands), (out,), node.attributes, node.name, "", _VERSION))
        details = (out, *node.inputs[6:8])
        made.append(Node("QuantizeLinear", details, (y,), {"axis": weight_axis}, f"{y}/quantizelinear", "", _VERSION))
        for each in made:
            s.take(each)
        return True

    return rule


_RULES: dict[str, Callable[[_IntegerRewriter, Node], bool]] = {
    "DequantizeLinear": _try_skip_dequantisation,
    "QuantizeLinear": _try_drop_repeated_quantisation,
    **dict.fromkeys(_MOVES, _try_move_integers),
    "MaxPool": _try_max_pool_integers,
    "Concat": _try_concat_integers,
    "Conv": _try_rewrite_convolution,
    "MatMul": _try_rewrite_matmul,
    "Gemm": _try_rewrite_gemm,
    "QLinearConv": _make_qlinear_rule("Conv", 0),
    "QLinearMatMul": _make_qlinear_rule("MatMul", -1),
}
