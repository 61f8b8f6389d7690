"""Interface of the tracer for modules that expand a node into other nodes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import onnx

from roller.models.graph.model_graph import Node
from roller.models.onnx.load_model_proto import LoadedModel
from roller.models.onnx.name_scope import Scope
from roller.models.onnx.type_inference import Inference
from roller_runtime.plan.program_steps import Value


@dataclass
class DynamicNodes:
    """Nodes left to another runtime.

    Parameters
    ----------
    types
        ONNX types of values with unknown shapes, by unique name.
    nodes
        Protobuf message of each of these nodes, by node name; its values have unique names.
    reasons
        Reason for leaving each of these nodes to another runtime, by node name.
    """

    types: dict[str, onnx.TypeProto] = field(default_factory=dict)
    nodes: dict[str, onnx.NodeProto] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)


class GraphTracer(Protocol):
    """Interface of :class:`roller.models.onnx.trace_model.Tracer`."""

    loaded: LoadedModel
    loose: DynamicNodes | None
    values: dict[str, Value]
    constants: dict[str, np.ndarray]
    inference: Inference
    nodes: list[Node]
    refused: list[str]
    remedies: dict[str, None]
    behind: int
    unknown: set[str]
    low_bit_rows: int

    def is_loose(self, name: str) -> bool: ...  # noqa: D102

    def constant(self, name: str, array: np.ndarray) -> None: ...  # noqa: D102

    def define(self, scope: Scope, local: str) -> str: ...  # noqa: D102

    def fresh(self, base: str) -> str: ...  # noqa: D102

    def alias(self, scope: Scope, local: str, name: str) -> None: ...  # noqa: D102

    def run(self, nodes: Iterable[onnx.NodeProto], scope: Scope, wanted: Iterable[str]) -> None: ...  # noqa: D102

    def node(self, node: onnx.NodeProto, scope: Scope) -> None: ...  # noqa: D102

    def emit(self, op: str, inputs: Sequence[str], **attributes: Any) -> str: ...  # noqa: D102

    def refuse(self, node: Node, reason: str) -> None: ...  # noqa: D102

    def forget(self, node: onnx.NodeProto, scope: Scope) -> None: ...  # noqa: D102

    def label(self, node: onnx.NodeProto, scope: Scope) -> str: ...  # noqa: D102
