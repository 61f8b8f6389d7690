"""Copies nodes with bodies (If, Loop, Scan) and replaces the names in the bodies by unique ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import onnx

#: Returns the unique name of a local value, or ``None`` if there is none.
Find = Callable[[str], str | None]


def copy_with_renamed_bodies(
    node: onnx.NodeProto, inputs: Sequence[str], find: Find, prefix: str,
    array: Callable[[onnx.TensorProto], np.ndarray],
) -> onnx.NodeProto:  # fmt: skip
    """Return a copy of ``node`` that reads ``inputs`` and whose bodies use unique names."""
    made = onnx.NodeProto()
    made.CopyFrom(node)
    del made.input[:]
    made.input.extend(inputs)
    for attribute in made.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            attribute.g.CopyFrom(_copy_body(attribute.g, find, f"{prefix}{attribute.name}/", array))
        elif attribute.type == onnx.AttributeProto.TENSOR:
            attribute.t.CopyFrom(onnx.numpy_helper.from_array(np.ascontiguousarray(array(attribute.t)).reshape(
                tuple(attribute.t.dims)), attribute.t.name))  # fmt: skip
    return made


def _copy_body(
    graph: onnx.GraphProto, find: Find, prefix: str, array: Callable[[onnx.TensorProto], np.ndarray]
) -> onnx.GraphProto:
    own = {i.name for i in graph.input} | {t.name for t in graph.initializer}
    own |= {o for n in graph.node for o in n.output if o}

    def name_of(local: str) -> str | None:
        return f"{prefix}{local}" if local in own else find(local)

    made = onnx.GraphProto(name=graph.name or "body")
    for node in graph.node:
        inner = copy_with_renamed_bodies(
            node, [(name_of(n) or n) if n else "" for n in node.input], name_of, prefix, array
        )
        del inner.output[:]
        inner.output.extend(f"{prefix}{o}" if o else "" for o in node.output)
        made.node.append(inner)
    for tensor in graph.initializer:
        made.initializer.append(
            onnx.numpy_helper.from_array(np.ascontiguousarray(array(tensor)).reshape(tuple(tensor.dims)),
                                         f"{prefix}{tensor.name}"))  # fmt: skip
    for entries, copies in ((graph.input, made.input), (graph.output, made.output)):
        for entry in entries:
            copy = copies.add()
            copy.CopyFrom(entry)
            copy.name = name_of(entry.name) or entry.name
    return made


def outer_names_read_by_bodies(node: onnx.NodeProto) -> tuple[str, ...]:
    """Return the names of the outer values that a node's bodies read, without duplicates."""
    return tuple(dict.fromkeys(n for a in node.attribute if a.type == a.GRAPH for n in _outer_names_of_graph(a.g)))


def _outer_names_of_graph(graph: onnx.GraphProto) -> Iterator[str]:
    own = {i.name for i in graph.input} | {t.name for t in graph.initializer}
    own |= {o for n in graph.node for o in n.output if o}
    for node in graph.node:
        yield from (n for n in (*node.input, *outer_names_read_by_bodies(node)) if n and n not in own)
    yield from (o.name for o in graph.output if o.name not in own)
