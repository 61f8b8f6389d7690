"""Lowerings against their definition: one ONNX node, lowered and evaluated in float64.

``lowered(node(...), arrays)`` follows whatever a lowering returns (stages, views, simpler nodes) and computes it with
NumPy, without partition or compiler; ``agrees`` holds the result to onnx's own reference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from roller.expr import Tensor, TensorExpr
from roller.models.graph.model_graph import Node
from roller.models.onnx.lowering_registry import (
    Compute,
    ConcatOfInputs,
    InputView,
    LibraryCall,
    SimplerNodes,
    Site,
    lower_node,
)
from roller_runtime.plan.program_steps import Value

#: Version of the operators tested: the newest that ONNX Runtime knows too.
NEWEST = 23

#: Setting of ONNX Runtime: its sums of bytes are exact. By default they saturate in 16 bits on processors without VNNI.
EXACT = ("session.x64quantprecision", "1")
#: Arrays by name, ``None`` where an optional input is absent.
Arrays = Sequence["np.ndarray | None"]


def node(op: str, count: int, *, outputs: int = 1, version: int = 0, domain: str = "", **attributes: Any) -> Node:
    """Return a node with inputs ``i0 i1 ...`` and outputs ``o0 o1 ...``; attributes as a :class:`Graph` holds them."""
    given = {k: tuple(v) if isinstance(v, list) else v for k, v in attributes.items() if v is not None}
    version = version or NEWEST
    names = tuple(f"i{i}" for i in range(count)), tuple(f"o{i}" for i in range(outputs))
    return Node(op, *names, given, op.lower(), domain, version)


def lowered(
    n: Node, arrays: Arrays, constants: Sequence[int] = (), types: Sequence[Value | None] | None = None
) -> tuple[np.ndarray, ...]:
    """Compute a node by its lowering.

    Parameters
    ----------
    n
        From :func:`node`; inputs whose array is ``None`` count as absent.
    arrays
        One per input.
    constants
        Positions of the inputs the lowering may look into.
    types
        Of the outputs; by default what the reference computes.
    """
    n, feeds = _absent(n, arrays)
    types = types or [Value(o, a.shape, a.dtype.name) for o, a in zip(n.outputs, reference(n, arrays), strict=True)]
    values = {name: Value(name, a.shape, a.dtype.name) for name, a in feeds.items()}
    values.update({t.name: t for t in types if t is not None})
    known = {n.inputs[i]: feeds[n.inputs[i]] for i in constants if n.inputs[i]}
    env = dict(feeds)
    _evaluate(n, env, values, known)
    return tuple(env[o] for o in n.outputs if o)


def _absent(n: Node, arrays: Arrays) -> tuple[Node, dict[str, np.ndarray]]:
    names = tuple(name if a is not None else "" for name, a in zip(n.inputs, arrays, strict=True))
    feeds = {name: np.asarray(a) for name, a in zip(names, arrays, strict=True) if a is not None}
    return Node(n.op, names, n.outputs, n.attributes, n.name, n.domain, n.version), feeds


def site_of(n: Node, values: Mapping[str, Value], known: Mapping[str, np.ndarray]) -> Site:
    """Return what a lowering sees of a node."""
    return Site(
        n,
        tuple(values[i] if i else None for i in n.inputs),
        tuple(values[o] if o else None for o in n.outputs),
        tuple(known.get(i) for i in n.inputs),
    )


def expressions(
    n: Node, arrays: Arrays, constants: Sequence[int] = (), types: Sequence[Value | None] | None = None
) -> list[tuple[TensorExpr, list[np.ndarray]]]:
    """Return every tensor expression a node lowers to, with arrays to run it on; for tests that compile."""
    n, feeds = _absent(n, arrays)
    types = types or [Value(o, a.shape, a.dtype.name) for o, a in zip(n.outputs, reference(n, arrays), strict=True)]
    values = {name: Value(name, a.shape, a.dtype.name) for name, a in feeds.items()}
    values.update({t.name: t for t in types if t is not None})
    seen: list[tuple[TensorExpr, list[np.ndarray]]] = []
    _evaluate(n, dict(feeds), values, {n.inputs[i]: feeds[n.inputs[i]] for i in constants if n.inputs[i]}, seen)
    return seen


def _evaluate(n: Node, env: dict[str, np.ndarray], values: Mapping[str, Value], known: Mapping[str, np.ndarray],
              seen: list[tuple[TensorExpr, list[np.ndarray]]] | None = None) -> None:  # fmt: skip
    found = lower_node(site_of(n, values, known))
    if isinstance(found, SimplerNodes):
        values, known = {**values, **found.values}, {**known, **found.constants}
        values.update({k: Value(k, a.shape, a.dtype.name) for k, a in found.constants.items() if k not in values})
        env.update(found.constants)
        for inner in found.nodes:
            _evaluate(inner, env, values, known, seen)
    elif isinstance(found, InputView):
        value = values[n.outputs[0]]
        shown = env[n.inputs[found.position]].reshape(-1)[found.offset : found.offset + value.elements]
        _write(env, value, shown.reshape(value.shape))
    elif isinstance(found, ConcatOfInputs):
        _write(env, values[n.outputs[0]], np.concatenate([env[i] for i in n.inputs if i], axis=found.axis))
    elif isinstance(found, LibraryCall):
        from roller_runtime.session import array_functions

        env.update(found.constants)
        given = [env[i] if i else None for i in (n.inputs if found.inputs is None else found.inputs)]
        results = array_functions.FUNCTIONS[found.function](np, given, dict(found.attributes))
        for o, a in zip(n.outputs, results if isinstance(results, (tuple, list)) else (results,), strict=False):
            _write(env, values[o], a)
    else:
        assert isinstance(found, Compute)
        _compute(n, found, env, values, seen)


def _compute(n: Node, found: Compute, env: dict[str, np.ndarray], values: Mapping[str, Value],
             seen: list[tuple[TensorExpr, list[np.ndarray]]] | None) -> None:  # fmt: skip
    env.update(found.constants)
    written = {s.name for s in found.stages}
    outputs = tuple(o for o in n.outputs if o in written)
    assert outputs == tuple(o for o in n.outputs if o), f"{n.op}: stages write {written}, not {n.outputs}"
    assert all(name in outputs or name.startswith(n.outputs[0]) for name in written), written
    reads = dict.fromkeys(ld.tensor for s in found.stages for ld in s.loads if ld.tensor not in written)
    inputs = tuple(Tensor(r, env[r].shape, env[r].dtype.name) for r in reads)
    expr = TensorExpr(n.op.lower(), inputs, found.stages, outputs)
    for t in expr.output_tensors:
        assert (t.shape, t.dtype) == (values[t.name].shape, values[t.name].dtype), (t, values[t.name])
    arrays = [env[r] for r in reads]
    if seen is not None:
        seen.append((expr, arrays))
    for o, a in zip(outputs, expr.evaluate(arrays), strict=True):
        _write(env, values[o], a)


def _write(env: dict[str, np.ndarray], value: Value, array: np.ndarray) -> None:
    assert tuple(array.shape) == value.shape, (value, array.shape)
    env[value.name] = np.asarray(array).astype(onnx.helper.tensor_dtype_to_np_dtype(_element_type(value.dtype)))


def _element_type(dtype: str) -> int:
    return int(getattr(TensorProto, {"float32": "FLOAT", "float64": "DOUBLE"}.get(dtype, dtype.upper())))


def model_of(n: Node, arrays: Arrays) -> onnx.ModelProto:
    """Return a model of one node, its inputs typed by ``arrays``."""
    n, feeds = _absent(n, arrays)
    attributes = {k: numpy_helper.from_array(v) if isinstance(v, np.ndarray) else v for k, v in n.attributes.items()}
    proto = helper.make_node(n.op, n.inputs, n.outputs, domain=n.domain, **attributes)
    inputs = [helper.make_tensor_value_info(k, _element_type(a.dtype.name), a.shape) for k, a in feeds.items()]
    outputs = [onnx.ValueInfoProto(name=o) for o in n.outputs if o]
    graph = helper.make_graph([proto], n.op, inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid(n.domain, n.version)], ir_version=10)


def reference(n: Node, arrays: Arrays) -> tuple[np.ndarray, ...]:
    """Compute a node by onnx's reference implementation."""
    _, feeds = _absent(n, arrays)
    return tuple(np.asarray(a) for a in ReferenceEvaluator(model_of(n, arrays)).run(None, feeds))


def runtime(n: Node, arrays: Arrays) -> tuple[np.ndarray, ...]:
    """Compute a node by ONNX Runtime: fast, and right where the reference is not."""
    import onnxruntime

    _, feeds = _absent(n, arrays)
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    options.add_session_config_entry(*EXACT)
    data = model_of(n, arrays).SerializeToString()
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    return tuple(session.run(None, feeds))


def agrees(
    n: Node, arrays: Arrays, constants: Sequence[int] = (), *, wanted: Sequence[np.ndarray] | None = None,
    rtol: float = 2e-5, atol: float = 1e-5,
) -> None:  # fmt: skip
    """Assert that a node's lowering computes what the reference (or ``wanted``) says."""
    wanted = tuple(wanted) if wanted is not None else reference(n, arrays)
    types = [Value(o, a.shape, a.dtype.name) for o, a in zip(n.outputs, wanted, strict=True) if o]
    got = lowered(n, arrays, constants, types)
    for g, w in zip(got, wanted, strict=True):
        assert (g.shape, g.dtype) == (w.shape, w.dtype)
        np.testing.assert_allclose(np.asarray(g, np.float64), np.asarray(w, np.float64), rtol=rtol, atol=atol)
