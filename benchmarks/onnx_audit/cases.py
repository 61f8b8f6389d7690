"""Cases of an audit: node tests as each version of an operator has them, and variations of these."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, NodeProto, helper

from benchmarks.onnx_backend import plain
from benchmarks.onnx_coverage import cases as node_tests

#: Bytes of inputs up to which a node test is varied: the reference is plain Python.
_MOST_ELEMENTS = 1 << 14
#: Attributes that are 0 or 1, and others with the values they are varied to.
FLAGS = frozenset({
    "keepdims", "ceil_mode", "count_include_pad", "storage_order", "exclusive", "reverse", "select_last_index",
    "align_corners", "noop_with_empty_axes", "allowzero", "exclude_outside", "antialias", "largest", "fmod", "transA",
    "transB", "linear_before_reset", "inverse", "onesided", "normalize_variance", "is_causal",
})  # fmt: skip
NUMBERS = frozenset({"alpha", "beta", "gamma", "epsilon", "bias", "lambd", "extrapolation_value", "spatial_scale",
                     "cubic_coeff_a"})  # fmt: skip
CHOICES: dict[str, tuple[str, ...]] = {
    "auto_pad": ("SAME_UPPER", "SAME_LOWER", "VALID"),
    "coordinate_transformation_mode": ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners",
                                       "asymmetric", "output_half_pixel", "tf_half_pixel_for_nn"),
    "nearest_mode": ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"),
    "keep_aspect_ratio_policy": ("stretch", "not_larger", "not_smaller"),
    "padding_mode": ("zeros", "border", "reflection"),
    "reduction": ("none", "sum", "mean", "add", "mul", "max", "min"),
    "direction": ("forward", "reverse", "bidirectional"),
    "approximate": ("none", "tanh"),
}  # fmt: skip
MODES: dict[str, tuple[str, ...]] = {
    "Resize": ("nearest", "linear", "cubic"), "Upsample": ("nearest", "linear"),
    "GridSample": ("linear", "nearest", "cubic", "bilinear", "bicubic"),
    "Pad": ("constant", "reflect", "edge", "wrap"), "RoiAlign": ("avg", "max"), "DepthToSpace": ("DCR", "CRD"),
    "TensorScatter": ("linear", "circular"),
}  # fmt: skip
#: Dtypes a case is varied to, in this order; the operator's schema says which it takes.
DTYPES = {
    "tensor(float)": np.dtype(np.float32), "tensor(double)": np.dtype(np.float64),
    "tensor(float16)": np.dtype(np.float16),
    "tensor(int64)": np.dtype(np.int64), "tensor(int32)": np.dtype(np.int32), "tensor(int8)": np.dtype(np.int8),
    "tensor(uint8)": np.dtype(np.uint8), "tensor(int16)": np.dtype(np.int16), "tensor(uint16)": np.dtype(np.uint16),
    "tensor(uint32)": np.dtype(np.uint32), "tensor(uint64)": np.dtype(np.uint64), "tensor(bool)": np.dtype(bool),
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One node with what it reads.

    Parameters
    ----------
    operator, version
        The operator and the version of it.
    about
        The node test, and what was varied.
    node
        Inputs are named ``i0 i1 ...``, absent ones ``""``.
    feeds
        An array per input, ``None`` where it is absent.
    expected
        What the node test says itself, where it was not changed.
    """

    operator: str
    version: int
    about: str
    node: NodeProto
    feeds: tuple[np.ndarray | None, ...]
    expected: tuple[np.ndarray, ...] | None = None

    def model(self) -> onnx.ModelProto:
        """Return a model of the node alone, of the newest operator set that has this version."""
        feeds = [(f"i{k}", a) for k, a in enumerate(self.feeds) if a is not None]
        inputs = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in feeds]
        outputs = [onnx.ValueInfoProto(name=o) for o in self.node.output if o]
        graph = helper.make_graph([self.node], self.operator, inputs, outputs)
        return helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", last_set(self.operator, self.version))],
            ir_version=min(onnx.IR_VERSION, 10 if self.version < 23 else onnx.IR_VERSION),
        )  # fmt: skip

    def arrays(self) -> dict[str, np.ndarray]:
        """Return what is fed, by name."""
        return {f"i{k}": a for k, a in enumerate(self.feeds) if a is not None}

    def attributes(self) -> dict[str, Any]:
        """Return what the node says."""
        return {a.name: helper.get_attribute_value(a) for a in self.node.attribute}


@cache
def versions() -> dict[str, tuple[int, ...]]:
    """Return the versions of every operator of ONNX's own domain."""
    found: dict[str, set[int]] = defaultdict(set)
    for schema in onnx.defs.get_all_schemas_with_history():
        if not schema.domain:
            found[schema.name].add(schema.since_version)
    return {name: tuple(sorted(of)) for name, of in found.items()}


def last_set(operator: str, version: int) -> int:
    """Return the newest operator set in which an operator has this version."""
    later = [v for v in versions()[operator] if v > version]
    return min(later) - 1 if later else onnx.defs.onnx_opset_version()


@cache
def seeds() -> dict[str, tuple[Case, ...]]:
    """Return onnx's node tests of one node, by operator, as its newest version has them."""
    found: dict[str, list[Case]] = defaultdict(list)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tests = node_tests()
    for test in tests:
        nodes = test.model.graph.node
        if len(nodes) != 1 or nodes[0].domain not in ("", "ai.onnx") or test.name.endswith("_expanded"):
            continue
        operator, given = nodes[0].op_type, [plain(a) for a in test.data_sets[0][0]]
        expected = [plain(a) for a in test.data_sets[0][1]]
        if not all(isinstance(a, (np.ndarray, np.generic)) for a in (*given, *expected)):
            continue  # sequences and optional values
        by_name = dict(zip((i.name for i in test.model.graph.input), map(np.asarray, given), strict=False))
        node = NodeProto()
        node.CopyFrom(nodes[0])
        feeds = tuple(by_name.get(n) if n else None for n in node.input)
        _named(node, feeds)
        opset = next(o.version for o in test.model.opset_import if o.domain in ("", "ai.onnx"))
        version = onnx.defs.get_schema(operator, opset, "").since_version
        outputs = tuple(np.asarray(a) for a in expected)
        found[operator].append(Case(operator, version, test.name, node, feeds, outputs))
    return {name: tuple(of) for name, of in found.items()}


def _named(node: NodeProto, feeds: Sequence[np.ndarray | None]) -> None:
    del node.input[:]
    node.input.extend(f"i{k}" if a is not None else "" for k, a in enumerate(feeds))
    while node.input and not node.input[-1]:
        del node.input[-1]


def written(case: Case, version: int) -> Case | None:
    """Return a case as another version of its operator has it; ``None`` where that cannot say it.

    What an input says there may be an attribute here, inputs may stand elsewhere, and attributes that do not exist are
    left out where they say what is the default.
    """
    if version == case.version:
        return case
    new, old = (onnx.defs.get_schema(case.operator, v, "") for v in (case.version, version))
    node = NodeProto()
    node.CopyFrom(case.node)
    feeds: list[np.ndarray | None] = [None] * len(case.feeds)
    places = {formal.name: k for k, formal in enumerate(old.inputs)}
    for k, array in enumerate(case.feeds):
        formal = new.inputs[min(k, len(new.inputs) - 1)].name
        if array is None:
            continue
        at = places.get(formal, k) if k < len(new.inputs) else k
        if formal not in places and formal in old.attributes:
            node.attribute.append(_attribute(formal, old.attributes[formal].type, array))
        elif at < old.max_input and at < len(feeds) and feeds[at] is None:
            feeds[at] = array
        else:
            return None
    kept = []
    for attribute in node.attribute:
        if attribute.name in old.attributes:
            kept.append(attribute)
        elif attribute.name not in new.attributes or attribute != new.attributes[attribute.name].default_value:
            return None
    del node.attribute[:]
    node.attribute.extend(kept)
    while feeds and feeds[-1] is None:
        feeds.pop()
    _named(node, feeds)
    found = replace(case, version=version, node=node, feeds=tuple(feeds), expected=None)
    return found if taken(found) else None


def _attribute(name: str, kind: Any, array: np.ndarray) -> AttributeProto:
    floats = kind in (onnx.defs.OpSchema.AttrType.FLOAT, onnx.defs.OpSchema.AttrType.FLOATS)
    listed = [float(v) if floats else int(v) for v in array.ravel()]
    single = kind in (onnx.defs.OpSchema.AttrType.INT, onnx.defs.OpSchema.AttrType.FLOAT)
    return helper.make_attribute(name, listed[0] if single and listed else listed, attr_type=_KINDS.get(kind))


_KINDS = {
    onnx.defs.OpSchema.AttrType.INTS: AttributeProto.INTS, onnx.defs.OpSchema.AttrType.FLOATS: AttributeProto.FLOATS,
    onnx.defs.OpSchema.AttrType.INT: AttributeProto.INT, onnx.defs.OpSchema.AttrType.FLOAT: AttributeProto.FLOAT,
}  # fmt: skip


def taken(case: Case) -> bool:
    """Whether the operator's schema takes a case: dtypes, numbers of inputs and outputs, attributes."""
    schema = onnx.defs.get_schema(case.operator, case.version, "")
    for k, array in enumerate(case.feeds):
        if k >= schema.max_input or not schema.inputs:
            return False
        formal = schema.inputs[min(k, len(schema.inputs) - 1)]
        if array is not None and _kind(array) not in formal.types:
            return False
    context = onnx.checker.C.CheckerContext()
    context.ir_version, context.opset_imports = onnx.IR_VERSION, {"": last_set(case.operator, case.version)}
    try:
        onnx.checker.check_node(case.node, context)
    except onnx.checker.ValidationError:
        return False
    return True


def _kind(array: np.ndarray) -> str:
    return f"tensor({_TYPES.get(array.dtype.name, array.dtype.name)})"


_TYPES = {"float32": "float", "float64": "double"}


def cases_of(operator: str, version: int, most: int) -> Iterator[Case]:
    """Yield the cases of one version of an operator: its node tests, others' that it can say, and variations.

    There are at most ``most`` of other versions' tests, and of variations.
    """
    told, varied, later = set(), list[Case](), 0
    for seed in seeds().get(operator, ()):
        case = written(seed, version)
        if case is None or (later := later + (seed.version != version)) > most:
            continue
        yield case
        if sum(a.size for a in case.feeds if a is not None) <= _MOST_ELEMENTS:
            varied += variations(case)
    # As evenly over the kinds of variations as there are of them.
    rng = np.random.default_rng(len(varied))
    kinds: dict[str, list[Case]] = defaultdict(list)
    for at in rng.permutation(len(varied)):
        kinds[varied[at].about.split(", ")[-1].split("=")[0]].append(varied[at])
    turn = 0
    while len(told) < most and any(len(of) > turn for of in kinds.values()):
        for of in kinds.values():
            if len(of) <= turn or len(told) >= most:
                continue
            case = of[turn]
            shapes = tuple(None if a is None else (a.shape, a.dtype.name) for a in case.feeds)
            key = case.node.SerializeToString(), shapes
            if key not in told and taken(case):
                told.add(key)
                yield case
        turn += 1


def variations(case: Case) -> Iterator[Case]:
    """Yield a case with one thing changed: an attribute, a dtype, a shape."""
    schema = onnx.defs.get_schema(case.operator, case.version, "")
    rank = next((a.ndim for a in case.feeds if a is not None), 0)
    said = case.attributes()
    for name, formal in schema.attributes.items():
        default = helper.get_attribute_value(formal.default_value) if formal.default_value.name else None
        for value in _values(case.operator, name, said.get(name, default), rank):
            yield _changed(case, name, value)
    yield from _of_dtypes(case, schema)
    yield from _of_shapes(case)


def _values(operator: str, name: str, value: Any, rank: int) -> Iterator[Any]:
    """Yield other values an attribute may have."""
    if name in FLAGS:
        yield 1 - int(value or 0)
    elif name in ("axis", "start_axis") and rank:
        yield from (a for a in range(-rank, rank) if a != value)
    elif name == "axes" and value:
        yield [a - rank if a >= 0 else a + rank for a in value]
        yield list(value[:1])
        yield from ([a] for a in range(-rank, rank))
    elif name == "mode":
        yield from (m for m in MODES.get(operator, ()) if m.encode() != value)
    elif name in CHOICES:
        yield from (c for c in CHOICES[name] if c.encode() != value)
    elif name in ("strides", "dilations") and rank > 2:
        yield from ([k] * (rank - 2) for k in (1, 2, 3) if [k] * (rank - 2) != value)
        yield list(range(1, rank - 1))
    elif name == "pads" and value:
        yield from ([0] * len(value), [1] * len(value), [1] * (len(value) // 2) + [0] * (len(value) - len(value) // 2),
                    [0] * (len(value) // 2) + [1] * (len(value) - len(value) // 2))  # fmt: skip
    elif name == "output_padding" and rank > 2:
        yield [1] * (rank - 2)
    elif name == "perm" and rank:
        yield list(range(rank))
        yield [*range(1, rank), 0]
    elif name == "p":
        yield from (1, 2, 3)
    elif name in ("k", "diagonal", "batch_dims", "sampling_ratio"):
        yield from (0, 1, 2)
    elif name in NUMBERS:
        yield from (float(value or 0) * 0.5 + 0.25, float(value or 0) + 1)


def _changed(case: Case, name: str, value: Any) -> Case:
    node = NodeProto()
    node.CopyFrom(case.node)
    kept = [a for a in node.attribute if a.name != name and not (name == "auto_pad" and a.name == "pads")]
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute(name, value)])
    return replace(case, node=node, about=f"{case.about}, {name}={value}", expected=None)


def _of_dtypes(case: Case, schema: onnx.defs.OpSchema) -> Iterator[Case]:
    """Yield a case with all inputs of the first one's type parameter in other dtypes."""
    if not schema.inputs or not case.feeds or case.feeds[0] is None or case.feeds[0].dtype.kind in "OUS":
        return
    formal, own = schema.inputs[0], case.feeds[0]
    own_kind = [
        schema.inputs[min(k, len(schema.inputs) - 1)].type_str == formal.type_str for k in range(len(case.feeds))
    ]
    alike = [k for k, a in enumerate(case.feeds) if a is not None and own_kind[k] and a.dtype.kind not in "OUS"]
    for kind, dtype in DTYPES.items():
        if kind not in formal.types or dtype == own.dtype:
            continue
        feeds = tuple(_cast(a, dtype) if a is not None and k in alike else a for k, a in enumerate(case.feeds))
        yield replace(case, feeds=feeds, about=f"{case.about}, {dtype.name}", expected=None)


def _cast(array: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    """Return an array in another dtype, its numbers small and of both signs where they can be."""
    if array.dtype.kind == "b" or dtype.kind == "b":
        return np.asarray(array.astype(bool).astype(dtype))
    wide = np.nan_to_num(array.astype(np.float64), nan=0.0, posinf=9.0, neginf=-9.0)
    if dtype.kind in "iu":
        wide = np.rint(wide * 3) % 17 if dtype.kind == "u" else np.clip(np.rint(wide * 3), -90, 90)
    return np.asarray(wide.astype(dtype))


def _of_shapes(case: Case) -> Iterator[Case]:
    """Yield a case with nothing in one dimension, and with a second operand that is broadcast."""
    first = case.feeds[0] if case.feeds else None
    if first is None or not first.ndim:
        return
    for axis in {0, first.ndim - 1}:
        feeds = tuple(np.take(a, [], axis) if a is not None and a.shape == first.shape else a for a in case.feeds)
        yield replace(case, feeds=feeds, about=f"{case.about}, empty axis={axis}", expected=None)
    if len(case.feeds) == 2 and case.feeds[1] is not None and case.feeds[1].shape == first.shape and first.size:
        for other in (case.feeds[1][..., :1], case.feeds[1][:1], case.feeds[1].ravel()[0]):
            feeds = (first, np.asarray(other))
            yield replace(case, feeds=feeds, about=f"{case.about}, broadcast={np.shape(other)}", expected=None)
