"""Removes no-ops and merges consecutive data movements in one sweep, by rules for each operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from roller.models.graph.model_graph import Node
from roller.models.onnx.mutable_graph import MutableGraph


@dataclass(frozen=True)
class EqualTo:
    """A rule's finding that the node's first output equals the value ``source``."""

    source: str


@dataclass(frozen=True)
class RuleContext:
    """The graph before the sweep, and the writers of values among the nodes kept so far."""

    draft: MutableGraph
    producers: Mapping[str, Node]

    def producer(self, name: str, *ops: str) -> Node | None:
        """Return the node that writes a value if it is one of the ONNX operators ``ops``; otherwise ``None``."""
        found = self.producers.get(name)
        return found if found is not None and found.op in ops and not found.domain else None


Rule = Callable[[RuleContext, Node], "EqualTo | Node | None"]

#: Operators that keep all elements and their order.
RESHAPES = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")


def remove_no_ops(draft: MutableGraph) -> bool:
    """Remove no-ops and merge data movements in place; return whether the draft changed."""
    same: dict[str, str] = {}
    kept: list[Node] = []
    producers: dict[str, Node] = {}
    scene = RuleContext(draft, producers)
    outputs, ends = set(draft.outputs), {*draft.inputs, *draft.outputs}
    changed = False
    for node in draft.nodes:
        if any(n in same for n in node.inputs):
            node = replace(node, inputs=tuple(same.get(n, n) for n in node.inputs))
        found: EqualTo | Node | None = None
        if not node.domain and any(node.outputs[:1]):
            found = next((f for rule in _RULES.get(node.op, ()) if (f := rule(scene, node)) is not None), None)
        if isinstance(found, EqualTo) and not any(node.outputs[1:]):
            output, source = node.outputs[0], found.source
            if output not in outputs or source not in ends:
                same[output], changed = source, True
                continue
            # If an input and an output, or two outputs, are the same value, one of them must be a copy.
            found = None if node.op == "Identity" else _copy_node(source, output)
        if isinstance(found, Node):
            node, changed = found, True
        kept.append(node)
        producers.update((n, node) for n in node.outputs if n)
    draft.nodes = kept
    _restore_output_names(draft, same, producers)
    return changed


def _copy_node(source: str, output: str) -> Node:
    return Node("Identity", (source,), (output,), {}, f"{output}/copy", "", 13)


def _restore_output_names(draft: MutableGraph, same: Mapping[str, str], producers: Mapping[str, Node]) -> None:
    """Restore the names of outputs that were replaced by equal values."""
    renamed: dict[str, str] = {}
    copies: list[Node] = []
    outputs = set(draft.outputs)
    for output in dict.fromkeys(draft.outputs):
        source = same.get(output)
        if source is None:
            continue
        if source in draft.constants:
            draft.constants[output] = draft.constants[source]
        elif source in producers and source not in outputs and source not in renamed:
            renamed[source] = output
        else:
            copies.append(_copy_node(renamed.get(source, source), output))
    if renamed:
        draft.nodes = [
            replace(
                node,
                inputs=tuple(renamed.get(n, n) for n in node.inputs),
                outputs=tuple(renamed.get(n, n) for n in node.outputs),
            )
            for node in draft.nodes
        ]
    draft.nodes.extend(copies)


def _is_output_typed_like_input(scene: RuleContext, node: Node) -> bool:
    source, result = scene.draft.values[node.inputs[0]], scene.draft.values[node.outputs[0]]
    return source.shape == result.shape and source.dtype == result.dtype


def _identity_rule(scene: RuleContext, node: Node) -> EqualTo | None:
    return EqualTo(node.inputs[0]) if _is_output_typed_like_input(scene, node) else None


def _same_type_no_op_rule(scene: RuleContext, node: Node) -> EqualTo | None:
    """Drop Reshape, Expand, Tile, Cast and similar nodes that have no effect."""
    return EqualTo(node.inputs[0]) if node.inputs[0] and _is_output_typed_like_input(scene, node) else None


def _single_input_rule(scene: RuleContext, node: Node) -> EqualTo | None:
    """Drop Concat, Sum, Max, Min and Mean nodes with one input, and Split nodes with one output."""
    return EqualTo(node.inputs[0]) if len(node.inputs) == 1 and _is_output_typed_like_input(scene, node) else None


def _dropout_rule(scene: RuleContext, node: Node) -> EqualTo | None:
    training = scene.draft.constant_input(node, 2)
    if scene.draft.has_input(node, 2) and (training is None or bool(training.reshape(-1)[0])):
        return None
    return EqualTo(node.inputs[0])


def _slice_rule(scene: RuleContext, node: Node) -> EqualTo | None:
    steps = scene.draft.constant_input(node, 4)
    if scene.draft.has_input(node, 4) and (steps is None or bool((steps < 0).any())):
        return None
    return _same_type_no_op_rule(scene, node)


def _pad_rule(scene: RuleContext, node: Node) -> EqualTo | None:
    amounts = node.attributes.get("pads", scene.draft.constant_input(node, 1))
    if amounts is None or np.any(np.asarray(amounts)):
        return None  # padding and cropping may give the same shape
    return _same_type_no_op_rule(scene, node)


def _neutral_constant_rule(scene: RuleContext, node: Node) -> EqualTo | None:
    """Drop ``x * 1``, ``x / 1``, ``x - 0``, integer ``x + 0`` and float ``x + -0`` (not ``x + 0``: ``-0 + 0`` is 0)."""
    neutral = 1 if node.op in ("Mul", "Div") else 0
    for position in (1, 0) if node.op in ("Mul", "Add") else (1,):
        array, source = scene.draft.constant_input(node, position), node.inputs[1 - position]
        if array is None:
            continue
        types = scene.draft.values[source], scene.draft.values[node.outputs[0]]
        if (
            types[0].shape == types[1].shape
            and array.size
            and array.dtype.kind in "fiuV"
            and _all_equal(array, neutral)
        ):
            return EqualTo(source) if _keeps_zero_signs(node.op, array) else None
    return None


def _keeps_zero_signs(op: str, neutral: np.ndarray) -> bool:
    """Return whether an operator with neutral constants keeps the sign of -0, as ``x + 0`` does not."""
    if op in ("Mul", "Div") or neutral.dtype.kind in "iu":
        return True
    negative = np.signbit(neutral.astype(np.float32, copy=False))
    return bool(negative.all() if op == "Add" else not negative.any())


def _where_rule(scene: RuleContext, node: Node) -> EqualTo | None:
    """Drop ``Where(c, x, x)``; return ``None`` for other choices."""
    alike = node.inputs[1] == node.inputs[2]
    return EqualTo(node.inputs[1]) if alike and _have_same_shape(scene, node.inputs[1], node.outputs[0]) else None


def _have_same_shape(scene: RuleContext, one: str, other: str) -> bool:
    return scene.draft.shape(one) == scene.draft.shape(other)


def _all_equal(array: np.ndarray, number: int) -> bool:
    first = array[(0,) * array.ndim]
    return bool(first == number) and bool((array == number).all())


def _transpose_permutation(node: Node, rank: int) -> tuple[int, ...]:
    return tuple(node.attributes.get("perm", range(rank - 1, -1, -1)))


def _transpose_rule(scene: RuleContext, node: Node) -> EqualTo | Node | None:
    """Simplify a transpose that is the identity, follows another transpose, or moves only dimensions of one element."""
    shape = scene.draft.shape(node.inputs[0])
    order = _transpose_permutation(node, len(shape))
    if order == tuple(range(len(shape))):
        return EqualTo(node.inputs[0])
    before = scene.producer(node.inputs[0], "Transpose")
    if before is not None:
        first = _transpose_permutation(before, len(shape))
        return replace(node, inputs=before.inputs, attributes={"perm": tuple(first[d] for d in order)})
    moved = [d for d in order if shape[d] != 1]
    return _reshape_to_output(scene, node, node.inputs[0]) if moved == sorted(moved) else None


def _reshape_rule(scene: RuleContext, node: Node) -> Node | None:
    """Let a reshape of another reshape's result read that reshape's input."""
    before = scene.producer(node.inputs[0], *RESHAPES)
    return None if before is None else _reshape_to_output(scene, node, before.inputs[0])


def _reshape_to_output(scene: RuleContext, node: Node, source: str) -> Node | None:
    shape = scene.draft.shape(node.outputs[0])
    if 0 in shape:
        return None  # a target of 0 means "as the input"
    target = scene.draft.constant(f"{node.outputs[0]}/shape", np.array(shape, np.int64))
    return replace(node, op="Reshape", inputs=(source, target), attributes={})


_RULES: dict[str, tuple[Rule, ...]] = {
    "Identity": (_identity_rule,),
    "Dropout": (_dropout_rule,),
    "Transpose": (_transpose_rule,),
    "Slice": (_slice_rule,),
    "Where": (_where_rule,),
    "Pad": (_pad_rule,),
    **dict.fromkeys(("Cast", "CastLike", "Expand", "Tile"), (_same_type_no_op_rule,)),
    **dict.fromkeys(("Concat", "Sum", "Max", "Min", "Mean", "Split"), (_single_input_rule,)),
    **dict.fromkeys(("Mul", "Div", "Add", "Sub"), (_neutral_constant_rule,)),
    **dict.fromkeys(RESHAPES, (_same_type_no_op_rule, _reshape_rule)),
}
