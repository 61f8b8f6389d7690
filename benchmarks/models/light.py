"""The networks inside the onnx package with weights that compute something.

The package holds nine architectures whose weights are ``ConstantOfShape`` nodes: every output is the same number. Here
each of these nodes becomes a random weight, drawn by what the network uses it for.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

#: Standard deviation of logits.
_SPREAD = 1.5

Draw = Callable[[tuple[int, ...]], np.ndarray]


def folder() -> Path:
    """Return where the onnx package keeps them."""
    return Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"


def names() -> tuple[str, ...]:
    """Return their names, sorted: ``light_bvlc_alexnet`` to ``light_zfnet512``."""
    return tuple(sorted(p.stem for p in folder().glob("light_*.onnx")))


def build(path: Path, batch: int, name: str, seed: int = 0) -> None:
    """Write one of the models with random weights and, where it is not 1, another batch."""
    model = onnx.load(str(folder() / f"{name}.onnx"))
    graph = model.graph
    held = {t.name: t for t in graph.initializer}
    made = {n.output[0]: n for n in graph.node if n.op_type == "ConstantOfShape"}
    drawing, roles = _draws(np.random.default_rng(seed)), _roles(graph)
    for output, node in made.items():
        shape = tuple(int(v) for v in numpy_helper.to_array(held[node.input[0]]))
        array = drawing[roles.get(output, "bias")](shape)
        graph.initializer.append(numpy_helper.from_array(array.astype(np.float32), output))
    used = {i for n in graph.node if n.output[0] not in made for i in n.input}
    _keep(graph.node, [n for n in graph.node if n.output[0] not in made])
    _keep(graph.initializer, [t for t in graph.initializer if t.name in used])
    _keep(graph.input, [i for i in graph.input if i.name in used and i.name not in {t.name for t in graph.initializer}])
    model.ir_version = 8  # since 4 an initializer is no input
    _calibrate(model)
    if batch != 1:
        _rebatch(graph, batch)
    path.write_bytes(model.SerializeToString())


def _keep(field, kept) -> None:  # noqa: ANN001
    copies = [type(k).FromString(k.SerializeToString()) for k in kept]
    del field[:]
    field.extend(copies)


def _roles(graph: onnx.GraphProto) -> dict[str, str]:
    """Return what each weight is: by operator and position of its first reader, through Unsqueeze and Reshape."""
    summed = {i for n in graph.node if n.op_type == "Sum" for i in n.input}
    roles: dict[str, str] = {}
    for node in reversed(graph.node):
        for position, name in enumerate(node.input):
            if node.op_type in ("Unsqueeze", "Reshape"):
                role = roles.get(node.output[0])
            else:
                role = _ROLES.get((node.op_type, position))
                if role == "scale" and node.output[0] in summed:
                    role = "small scale"  # or every residual block doubles the variance
            if role is not None:
                roles[name] = role
    return roles


_ROLES = {
    ("Conv", 1): "weight", ("Gemm", 1): "matrix", ("Mul", 1): "scale",
    ("BatchNormalization", 1): "scale", ("BatchNormalization", 4): "variance",
}  # fmt: skip


def _draws(random: np.random.Generator) -> dict[str, Draw]:
    """Return how each role is drawn: He's scale for convolutions, statistics of a trained network for norms."""

    def normal(shape: tuple[int, ...], scale: float, mean: float = 0.0) -> np.ndarray:
        return random.standard_normal(shape, np.float32) * np.float32(scale) + np.float32(mean)

    return {
        "weight": lambda s: normal(s, math.sqrt(2 / max(1, math.prod(s[1:])))),
        "matrix": lambda s: normal(s, math.sqrt(2 / s[-1])),
        "scale": lambda s: normal(s, 0.1, 1.0),
        "small scale": lambda s: normal(s, 0.1, 0.4),
        "variance": lambda s: random.random(s, np.float32) * np.float32(0.6) + np.float32(0.7),
        "bias": lambda s: normal(s, 0.1),
    }


def _calibrate(model: onnx.ModelProto) -> None:
    """Scale the layer before a softmax so that its logits spread: of a saturated softmax nothing can be compared."""
    import onnxruntime

    made = {n.output[0]: n for n in model.graph.node}
    last = made[model.graph.output[0].name]
    layer = made.get(last.input[0])
    if last.op_type != "Softmax" or layer is None or layer.op_type != "Gemm":
        return
    (image,) = model.graph.input
    shape = [d.dim_value for d in image.type.tensor_type.shape.dim]
    feeds = {image.name: np.random.default_rng(0).standard_normal(shape).astype(np.float32)}
    probe = onnx.ModelProto.FromString(model.SerializeToString())
    probe.graph.output.append(helper.make_empty_tensor_value_info(layer.output[0]))
    session = onnxruntime.InferenceSession(probe.SerializeToString(), providers=["CPUExecutionProvider"])
    (logits,) = session.run([layer.output[0]], feeds)
    held = {t.name: t for t in model.graph.initializer}
    for name in (i if i in held else made[i].input[0] for i in layer.input[1:]):
        scaled = numpy_helper.to_array(held[name]) * np.float32(_SPREAD / logits.std())
        held[name].CopyFrom(numpy_helper.from_array(scaled, name))


def _rebatch(graph: onnx.GraphProto, batch: int) -> None:
    """Give inputs, outputs and the shapes of reshapes that begin with the batch of 1 another one."""
    for value in (*graph.input, *graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = batch
    del graph.value_info[:]
    held = {t.name: t for t in graph.initializer}
    for node in graph.node:
        shape = held.get(node.input[1]) if node.op_type == "Reshape" else None
        if shape is None:
            continue
        array = numpy_helper.to_array(shape).copy()
        if array[0] == 1:
            array[0] = batch
            renamed = f"{node.output[0]}/shape"  # others may share the constant
            graph.initializer.append(numpy_helper.from_array(array, renamed))
            node.input[1] = renamed
