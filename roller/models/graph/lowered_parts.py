"""Parts of a model during lowering, over the names of the graph's values.

A part computes stages, is a view or a concatenation of values, calls a library function, or is a node that Roller
cannot compute. A node becomes one or more parts; fusion turns parts into kernels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol, TypeAlias

from roller.errors import ExprError
from roller.expr import Stage, Tensor, TensorExpr
from roller.expr.canonical import fuse_axes
from roller.models.graph.model_graph import Node
from roller.tile.geometry import Geometry
from roller.tile.structures import STREAMING, Structure, structure_of


@dataclass(frozen=True)
class ComputedPart:
    """Stages that read and write the graph's values by name.

    Parameters
    ----------
    reads
        Inputs in the shapes in which they are read: the values' own shapes or reshaped ones.
    stages
        Stages in order; their outputs may also be reshaped.
    outputs
        Names that other parts may read.
    nodes
        Names of the original nodes.
    """

    reads: tuple[Tensor, ...]
    stages: tuple[Stage, ...]
    outputs: tuple[str, ...]
    nodes: tuple[str, ...] = ()

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the values read."""
        return tuple(t.name for t in self.reads)

    @cached_property
    def expr(self) -> TensorExpr:
        """The stages as an expression; raises :class:`ExprError` if they do not form one."""
        return TensorExpr(self.outputs[0], self.reads, self.stages, self.outputs)

    @cached_property
    def canonical(self) -> ComputedPart:
        """The part with as few axes as its accesses allow; raises as :attr:`expr` does."""
        fused = fuse_axes(self.expr)
        out = ComputedPart(fused.inputs, fused.stages, fused.outputs, self.nodes)
        out.__dict__["canonical"] = out
        out.__dict__["expr"] = fused
        return out

    @cached_property
    def structure(self) -> Structure | None:
        """The code-generation structure; ``None`` if the stages do not form an expression."""
        try:
            form = self.canonical
        except ExprError:
            return None
        return STREAMING if form.is_element_wise else structure_of(Geometry.of(form.expr))

    @cached_property
    def is_element_wise(self) -> bool:
        """Whether the part is a single stage without a reduction."""
        return len(self.stages) == 1 and self.stages[0].combiner is None

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every tensor as this part reads or writes it."""
        return {t.name: t.shape for t in (*self.reads, *(s.output for s in self.stages))}

    @cached_property
    def dtypes(self) -> dict[str, str]:
        """Dtype of every tensor."""
        return {t.name: t.dtype for t in (*self.reads, *(s.output for s in self.stages))}


@dataclass(frozen=True)
class AliasPart:
    """``target`` is the range of ``source`` that starts at element ``offset``."""

    source: str
    target: str
    offset: int = 0
    nodes: tuple[str, ...] = ()

    @property
    def inputs(self) -> tuple[str, ...]:
        """Name of the value read."""
        return (self.source,)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Name of the value written."""
        return (self.target,)


@dataclass(frozen=True)
class ConcatPart:
    """``target`` concatenates the sources along ``axis``."""

    sources: tuple[str, ...]
    target: str
    axis: int
    nodes: tuple[str, ...] = ()

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the values read, each once."""
        return tuple(dict.fromkeys(self.sources))

    @property
    def outputs(self) -> tuple[str, ...]:
        """Name of the value written."""
        return (self.target,)


@dataclass(frozen=True)
class AppendPart:
    """``target`` is the memory of the input ``cache``, with ``source`` written along ``axis`` from ``offset`` on."""

    source: str
    cache: str
    target: str
    axis: int
    offset: int
    nodes: tuple[str, ...] = ()

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the values read."""
        return self.source, self.cache

    @property
    def outputs(self) -> tuple[str, ...]:
        """Name of the value written."""
        return (self.target,)


@dataclass(frozen=True)
class LibraryFunctionPart:
    """A function of the array library; ``""`` in ``arguments`` or ``results`` denotes an absent one."""

    name: str
    arguments: tuple[str, ...]
    results: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    nodes: tuple[str, ...] = ()

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the present arguments, each once."""
        return tuple(dict.fromkeys(n for n in self.arguments if n))

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the present results."""
        return tuple(n for n in self.results if n)


@dataclass(frozen=True)
class RefusedNode:
    """A node that Roller cannot lower, and the reason."""

    node: Node
    reason: str

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the values read, each once."""
        return tuple(dict.fromkeys(n for n in self.node.inputs if n))

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the values written."""
        return tuple(n for n in self.node.outputs if n)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Name of the node."""
        return (self.node.name,)


@dataclass(frozen=True)
class FallbackSubgraph:
    """Nodes that another runtime computes; ``model`` contains them as ONNX bytes."""

    model: bytes = field(repr=False)
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    members: tuple[Node, ...]

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of the nodes."""
        return tuple(n.name or n.outputs[0] for n in self.members)


class PartProtocol(Protocol):
    """Protocol of parts: names of the values read and written, and of the original nodes."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the values read."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the values written."""

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of its nodes."""


Part: TypeAlias = (
    ComputedPart | AliasPart | ConcatPart | AppendPart | LibraryFunctionPart | RefusedNode | FallbackSubgraph
)


def restrict_outputs(part: ComputedPart, outputs: tuple[str, ...]) -> ComputedPart:
    """Return a part restricted to the stages that ``outputs`` need."""
    if len(part.stages) == 1 and outputs == part.outputs:
        return part
    wanted, kept = set(outputs), []
    for s in reversed(part.stages):
        if s.name in wanted:
            kept.append(s)
            wanted.update(ld.tensor for ld in s.loads)
    return replace(part, reads=tuple(t for t in part.reads if t.name in wanted), stages=tuple(kept[::-1]),
                   outputs=outputs)  # fmt: skip
