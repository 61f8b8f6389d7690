"""Replacement of attention that is written out as products and a softmax by the compiler's fused kernels."""

# Before Inductor lowers a graph, it matches attention patterns (``torch/_inductor/fx_passes/fuse_attention.py``,
# PyTorch 2.13): a product of queries and keys, scaling by a constant, an added mask, a softmax, inactive dropout, and
# the product with the values. Each result is read by the next operator only. Only inference is described, since in
# training the backward pass reads the intermediate results. Patterns with a mask that selects (``where``) are left out,
# since few models have them.

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from roller.insight.cost.gpu import returns_only_views
from roller.insight.cost.gpu.operator_view import OperatorView, element_count
from roller.insight.cost.library_settings import DEFAULT_TF32
from roller.insight.trace.torch_release import TorchRelease
from roller.insight.trace.trace import Operator, TensorRecord, Trace

#: First release that fuses float32 attention only if products may be computed in TF32 (pull request 151924 of
#: PyTorch, April 2025).
_CAREFUL_RELEASE = TorchRelease(2, 8)
_SCALES, _CASTS = frozenset({"aten.div", "aten.mul"}), frozenset({"aten._to_copy", "aten.clone"})


def fusible_attention_dtypes(trace: Trace) -> frozenset[str]:
    """Return the dtypes for which the compiler of a trace's PyTorch release fuses written-out attention."""
    release = TorchRelease.parse(trace.options.get("torch_release"))
    rounds = "product" in trace.options.get("tf32", DEFAULT_TF32)
    return frozenset({"float16", "bfloat16"} | ({"float32"} if rounds or release < _CAREFUL_RELEASE else set()))


def fuse_attention(
    operators: Sequence[Operator], dtypes: Collection[str], graph_of: Callable[[Operator], str | None]
) -> list[Operator]:
    """Return operators with each written-out attention replaced by a fused operator."""
    graph = _StorageUsers(operators, graph_of)
    found: dict[int, Operator] = {}
    gone: set[int] = set()
    for place, operator in enumerate(operators):
        match = _match_attention(graph, place, operator) if operator.name == "aten._softmax.default" else None
        if match is not None and match.query.dtype in dtypes and graph.are_in_one_graph(match.places):
            found[match.last] = match.operator(operators[match.last])
            gone |= match.places
    return [found.get(n, o) for n, o in enumerate(operators) if n in found or n not in gone]


class _StorageUsers:
    """The writers and readers of each storage; views count as neither."""

    def __init__(self, operators: Sequence[Operator], graph_of: Callable[[Operator], str | None]) -> None:
        self.operators, self.graph_of = operators, graph_of
        self.readers: dict[int, list[int]] = defaultdict(list)
        self.writers: dict[int, list[int]] = defaultdict(list)
        for place, operator in enumerate(operators):
            view = OperatorView(operator)
            if returns_only_views(view):
                continue
            for storage in {t.storage for t in operator.inputs}:
                self.readers[storage].append(place)
            if graph_of(operator) is not None:
                for storage in {t.storage for t in operator.outputs}:
                    self.writers[storage].append(place)

    def are_in_one_graph(self, places: Collection[int]) -> bool:
        """Return whether the operators at ``places`` belong to one graph."""
        return len({self.graph_of(self.operators[n]) for n in places}) == 1

    def only_writer_position(self, record: TensorRecord) -> int | None:
        """Return the position of the only operator that writes a tensor; ``None`` if none or several do."""
        found = self.writers.get(record.storage, ())
        return found[0] if len(found) == 1 else None

    def only_reader_position(self, record: TensorRecord) -> int | None:
        """Return the position of the only operator that reads a tensor; ``None`` if none or several do."""
        found = self.readers.get(record.storage, ())
        return found[0] if len(found) == 1 else None

    def packet(self, place: int) -> str:
        """Return the name of an operator without its overload."""
        return OperatorView(self.operators[place]).packet


@dataclass(frozen=True)
class _AttentionMatch:
    """The operators of a written-out attention, and its operands in the layout ``(batch, heads, length, depth)``."""

    last: int
    places: set[int]
    query: TensorRecord
    key: TensorRecord
    value: TensorRecord
    mask: TensorRecord | None

    def operator(self, product: Operator) -> Operator:
        """Return the fused operator, which writes all heads of a token contiguously."""
        batch, heads, rows, _ = self.query.shape
        depth = self.value.shape[-1]
        out = replace(
            product.outputs[0], shape=(batch, heads, rows, depth),
            stride=(rows * heads * depth, depth, heads * depth, 1),
        )  # fmt: skip
        masked = () if self.mask is None else (self.mask,)
        kernel = "flash" if self.query.dtype != "float32" and not masked else "efficient"
        names = ("query", "key", "value", "attn_bias")[: 3 + len(masked)]
        return replace(
            product, name=f"aten._scaled_dot_product_{kernel}_attention.default",
            inputs=(self.query, self.key, self.value, *masked), outputs=(out,),
            arguments={name: {"tensor": n} for n, name in enumerate(names)},
        )  # fmt: skip


def _match_attention(graph: _StorageUsers, place: int, softmax: Operator) -> _AttentionMatch | None:
    """Return the written-out attention around a softmax over the last dimension; ``None`` if there is none."""
    x = softmax.inputs[0]
    if len(x.shape) != 4 or int(softmax.arguments.get("dim", -1)) % 4 != 3:
        return None
    before = _find_score_product(graph, place)
    after = _find_value_product(graph, place)
    if before is None or after is None:
        return None
    first, mask, others = before
    last, more = after
    places = {first, place, last, *others, *more}
    scores, result = graph.operators[first], graph.operators[last]
    operands = [
        _four_dimensional_operand(graph, t, x.shape[:2], places) for t in (*scores.inputs[:2], result.inputs[1])
    ]
    if any(t is None for t in operands):
        return None
    query, key, value = (t for t in operands if t is not None)
    key = replace(key, shape=(*key.shape[:2], key.shape[3], key.shape[2]), stride=(*key.stride[:2], *key.stride[:1:-1]))
    return _AttentionMatch(last, places, query, key, value, mask)


def _find_score_product(graph: _StorageUsers, place: int) -> tuple[int, TensorRecord | None, set[int]] | None:
    """Return the query-key product, the mask, and the operators from product to softmax; ``None`` if unmatched."""
    mask: TensorRecord | None = None
    between: set[int] = set()
    record = graph.operators[place].inputs[0]
    while True:
        at = graph.only_writer_position(record)
        if at is None or graph.only_reader_position(record) is None:
            return None
        operator, packet = graph.operators[at], graph.packet(at)
        if packet == "aten.bmm":
            return at, mask, between
        large = [t for t in operator.inputs if element_count(t) == element_count(record)]
        if packet == "aten.add" and mask is None and len(operator.inputs) == 2:
            # the scores are the operand that is computed only for this sum
            scores = [
                t
                for t in large
                if graph.only_reader_position(t) is not None and graph.only_writer_position(t) is not None
            ]
            if not scores:
                return None
            record, (mask,) = scores[0], [t for t in operator.inputs if t is not scores[0]]
        elif packet in _SCALES | _CASTS and len(operator.inputs) == 1 and large:
            record = large[0]
        else:
            return None
        between.add(at)


def _find_value_product(graph: _StorageUsers, place: int) -> tuple[int, set[int]] | None:
    """Return the product with the values, and the operators from softmax to product; ``None`` if unmatched."""
    between: set[int] = set()
    record = graph.operators[place].outputs[0]
    while True:
        at = graph.only_reader_position(record)
        if at is None:
            return None
        operator = graph.operators[at]
        if graph.packet(at) == "aten.bmm":
            return (at, between) if operator.inputs[0].storage == record.storage else None
        if graph.packet(at) not in _CASTS or len(operator.inputs) != 1:
            return None
        between.add(at)
        record = operator.outputs[0]


def _four_dimensional_operand(
    graph: _StorageUsers, record: TensorRecord, outer: Sequence[int], places: set[int]
) -> TensorRecord | None:
    """Return a batched product's operand in four dimensions, skipping a copy made only for it; else ``None``."""
    if record.shape[0] != outer[0] * outer[1]:
        return None
    at = graph.only_writer_position(record)
    if at is not None and graph.packet(at) == "aten.clone" and graph.only_reader_position(record) is not None:
        source = graph.operators[at].inputs[0]
        if source.shape == (*outer, *record.shape[1:]) and not _is_transposed(record):
            places.add(at)
            return source
    step = record.stride[0]
    return replace(record, shape=(*outer, *record.shape[1:]), stride=(outer[1] * step, step, *record.stride[1:]))


def _is_transposed(record: TensorRecord) -> bool:
    return record.stride[-1] != 1
