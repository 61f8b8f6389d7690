"""Operators that ONNX defines as functions of simpler ones, spelled out where no lowering knows them whole."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import onnx
import onnx.inliner

from roller.onnx.lowering import LOWERINGS
from roller.onnx.types import tensor_type

#: How often what was spelled out may hold such operators itself.
_MOST_ROUNDS = 8


def spelled_out(
    graph: onnx.GraphProto, opsets: Mapping[str, int], initialisers: Mapping[str, np.ndarray], ir_version: int
) -> onnx.GraphProto:
    """Return the graph with every such operator replaced by ONNX's own definition of it.

    Parameters
    ----------
    graph
        Without weights and without calls of functions local to the model.
    opsets
        Version by domain.
    initialisers
        The weights, whose types some definitions depend on.
    ir_version
        Of the model.
    """
    for _ in range(_MOST_ROUNDS):
        wanted = _functions(graph.node, opsets)
        if not wanted:
            return graph
        spelled = _expanded(graph, opsets, initialisers, ir_version, sorted(wanted))
        if spelled is None or _functions(spelled.node, opsets) == wanted:
            return graph  # what is left is refused by its own name
        graph = spelled
    return graph


def _functions(nodes: Iterable[onnx.NodeProto], opsets: Mapping[str, int]) -> set[tuple[str, str]]:
    """Return the operators among ``nodes`` that have a definition and no lowering."""
    import roller.onnx.operators  # noqa: F401 - fills the registry

    kinds = {("" if n.domain == "ai.onnx" else n.domain, n.op_type) for n in nodes}
    return {k for k in kinds if k not in LOWERINGS and _has_definition(*k, opsets.get(k[0], 1))}


def _has_definition(domain: str, op: str, version: int) -> bool:
    try:
        schema = onnx.defs.get_schema(op, version, domain)
    except onnx.defs.SchemaError:
        return False
    return bool(getattr(schema, "has_function", False) or getattr(schema, "has_context_dependent_function", False))


def _expanded(
    graph: onnx.GraphProto, opsets: Mapping[str, int], initialisers: Mapping[str, np.ndarray], ir_version: int,
    wanted: list[tuple[str, str]],
) -> onnx.GraphProto | None:  # fmt: skip
    """Return the graph with ``wanted`` spelled out once, or ``None`` where ONNX cannot."""
    shell = onnx.ModelProto(ir_version=ir_version, graph=graph)
    shell.opset_import.extend(onnx.helper.make_opsetid(d, v) for d, v in opsets.items())
    known = {i.name for i in graph.input}
    for name, array in initialisers.items():
        if name not in known:
            try:
                kind = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
            except (KeyError, ValueError):
                return None
            shell.graph.input.append(onnx.ValueInfoProto(name=name, type=tensor_type(kind, array.shape)))
    try:
        typed = onnx.shape_inference.infer_shapes(shell)
        made: onnx.GraphProto = onnx.inliner.inline_selected_functions(
            typed, wanted, exclude=False, inline_schema_functions=True
        ).graph
    except Exception:  # noqa: BLE001 - plain RuntimeErrors of C++: the operators stay, and are refused by name
        return None
    result = onnx.GraphProto()
    result.CopyFrom(made)
    del result.input[:], result.value_info[:]
    result.input.extend(graph.input)
    result.value_info.extend(graph.value_info)
    return result
