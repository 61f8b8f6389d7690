"""Loads a model from a path, bytes or a message: its graph without weights, and the weights as arrays."""

from __future__ import annotations

import codecs
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import onnx.inliner
from google.protobuf.message import DecodeError

from roller.errors import ModelError
from roller.models.onnx.external_data import ExternalData
from roller.models.onnx.function_expansion_limits import check_expansion
from roller.models.onnx.mapped_weights import MappedWeights, read_message_without_weights
from roller.models.onnx.onnx_types import inline_tensor_to_array, tensor_type_proto
from roller.models.onnx.topological_order import MAX_DEPTH
from roller_runtime.core.files import read_file

#: Oldest operator set that inference and lowerings support.
OLDEST = 7
#: Maximum size of a protobuf message in bytes; larger models keep their weights in external files.
MAX_MESSAGE_BYTES = (1 << 31) - 1
#: Valid first bytes of a model (tags of its fields), and the number of bytes examined to identify other files.
_FIRST_BYTES = {bytes([f.number << 3 | (0 if f.cpp_type == f.CPPTYPE_INT64 else 2)])
                for f in onnx.ModelProto.DESCRIPTOR.fields if f.number < 16}  # fmt: skip
_LOOKED_AT = 256


@dataclass(frozen=True)
class LoadedModel:
    """A loaded model.

    Parameters
    ----------
    graph
        Graph without initializers and without calls to local functions.
    opsets
        Operator set versions by domain; ``""`` is ONNX's own domain, for which versions before 7 are given as 7.
    written
        Operator set version of ONNX's own domain that the file declares.
    array
        Function that returns a tensor of a body, whose data may be external, as an array.
    """

    name: str
    graph: onnx.GraphProto
    initialisers: dict[str, np.ndarray] = field(repr=False)
    opsets: dict[str, int]
    written: int
    ir_version: int
    array: Callable[[onnx.TensorProto], np.ndarray]


def load_onnx(model: str | Path | bytes | onnx.ModelProto, base_dir: str | Path | None = None) -> LoadedModel:
    """Load a model; a message passed in is not modified."""
    folder = None if base_dir is None else Path(base_dir)
    label = "model"
    if isinstance(model, (str, Path)):
        path = Path(model)
        label, folder = path.name, folder or path.parent
        message, weights = _read_file_without_weights(path)
        return _separate_weights(_parse_model(message, label), label, ExternalData(folder), weights)
    if isinstance(model, (bytes, bytearray, memoryview)):
        model = _parse_model(bytes(model), label)
    elif not isinstance(model, onnx.ModelProto):
        raise ModelError(f"model: expected a path, bytes or an onnx.ModelProto, got {type(model).__name__}.")
    return _separate_weights(model, label, ExternalData(folder), MappedWeights())


def _read_file_without_weights(path: Path) -> tuple[bytes, MappedWeights]:
    """Return the message in a file, and the locations of the weights that the message leaves out."""
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            hint = " Load a saved model with roller.load_model." if (path / "model.json").exists() else ""
            raise ModelError(f"'{path}': expected a file, got a folder or a device.{hint}")
        if found.st_size > MAX_MESSAGE_BYTES:
            raise ModelError(
                f"{path.name}: {found.st_size} bytes in one file; beyond 2 GB weights lie beside the model."
            )
        return read_message_without_weights(path) or (read_file(path), MappedWeights())
    except ModelError:
        raise
    except (OSError, ValueError) as error:
        raise ModelError(f"{str(path)!r}: cannot be read: {getattr(error, 'strerror', None) or error}.") from None


def _parse_model(data: bytes, label: str) -> onnx.ModelProto:
    try:
        model: onnx.ModelProto = onnx.ModelProto.FromString(data)
    except DecodeError as error:
        remedy = _describe_if_not_onnx(data) or f"and it cannot be parsed ({error}). It is damaged"
        raise ModelError(f"{label}: expected an ONNX model, {remedy}.") from None
    if not model.HasField("graph"):
        raise ModelError(f"{label}: expected an ONNX model, and it has no graph. It is damaged or of another format.")
    return model


def _describe_if_not_onnx(data: bytes) -> str:
    r"""Return what the data are if they are no ONNX model, with a remedy; an empty string if they may be one.

    Examples
    --------
    >>> _describe_if_not_onnx(b"import torch")
    'got text. Pass the file that an export to ONNX wrote'
    >>> _describe_if_not_onnx(b"\x08\x07\x12\x00")
    ''
    """
    start = data[:_LOOKED_AT]
    if start and _is_text(start):
        return "got text. Pass the file that an export to ONNX wrote"
    if start.startswith(b"PK"):
        return "got an archive, as PyTorch, Keras and NumPy write it. Export it to ONNX (torch.onnx.export)"
    return "" if start[:1] in _FIRST_BYTES else "got another kind of file. Pass the file that an export to ONNX wrote"


def _is_text(start: bytes) -> bool:
    """Return whether a file's first bytes are UTF-8 without control characters; the last character may be cut off."""
    try:
        codecs.getincrementaldecoder("utf-8")().decode(start)
    except UnicodeDecodeError:
        return False
    return not any(byte < 0x20 and byte not in b"\t\n\f\r" for byte in start)


def _separate_weights(
    model: onnx.ModelProto, label: str, external: ExternalData, weights: MappedWeights
) -> LoadedModel:
    """Return a loaded model whose weights are separate from the graph and whose function calls are inlined."""
    source = model.graph
    name = source.name or label
    check_names(source, label)

    def array(tensor: onnx.TensorProto) -> np.ndarray:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            return external.array(tensor)
        return inline_tensor_to_array(tensor, name)

    initialisers: dict[str, np.ndarray] = {}
    for number, tensor in enumerate(source.initializer):
        if not tensor.name or tensor.name in initialisers:
            raise ModelError(f"{name}: two initialisers are named '{tensor.name}', or one has no name.")
        mapped = weights.array(number, tensor)
        initialisers[tensor.name] = array(tensor) if mapped is None else mapped
    if source.sparse_initializer:
        raise ModelError(f"{name}: {len(source.sparse_initializer)} sparse initialisers; only dense ones are read.")
    opsets = _operator_sets(model, name)
    graph = onnx.GraphProto(name=source.name)
    for part in ("node", "input", "output", "value_info"):
        getattr(graph, part).extend(getattr(source, part))
    if model.functions:
        graph = _inline_functions(model, graph, initialisers, name)
    written = opsets.get("", OLDEST)
    opsets = {d: max(v, OLDEST) if not d else v for d, v in opsets.items()}
    return LoadedModel(name, graph, initialisers, opsets, written, int(model.ir_version), array)


def check_names(graph: onnx.GraphProto, where: str, depth: int = 0) -> None:
    """Refuse names that are not UTF-8 (protobuf returns them as bytes), and bodies nested too deeply."""
    if depth > MAX_DEPTH:
        raise ModelError(f"{where}: bodies are nested deeper than {MAX_DEPTH}.")
    entries = (*graph.input, *graph.output, *graph.initializer, *graph.value_info)
    names = [graph.name, *(e.name for e in entries)]
    for node in graph.node:
        names += (node.name, node.op_type, node.domain, *node.input, *node.output)
        for attribute in node.attribute:
            names.append(attribute.name)
            if attribute.type == onnx.AttributeProto.GRAPH:
                check_names(attribute.g, where, depth + 1)
    if not all(isinstance(name, str) for name in names):
        raise ModelError(f"{where}: expected names in UTF-8, got other bytes. The model is damaged.")


def _operator_sets(model: onnx.ModelProto, name: str) -> dict[str, int]:
    opsets = {"" if o.domain == "ai.onnx" else o.domain: int(o.version) for o in model.opset_import}
    if not opsets:
        raise ModelError(f"{name}: the model imports no operator set. It is damaged, or of a format before 2017.")
    version, newest = opsets.get("", OLDEST), onnx.defs.onnx_opset_version()
    if not 1 <= version <= newest:
        raise ModelError(
            f"{name}: expected operator set 1 to {newest}, got {version}. "
            + ("Install a newer onnx package." if version > newest else "The model is damaged.")
        )
    return opsets


def _inline_functions(
    model: onnx.ModelProto, graph: onnx.GraphProto, initialisers: dict[str, np.ndarray], name: str
) -> onnx.GraphProto:
    """Return the graph with calls to local functions replaced by their bodies."""
    check_expansion(model.functions, graph, name)
    shell = onnx.ModelProto(ir_version=model.ir_version)
    shell.opset_import.extend(model.opset_import)
    shell.functions.extend(model.functions)
    shell.graph.CopyFrom(graph)
    known = {i.name for i in graph.input}
    # Weights are temporary inputs: the inliner copies its argument, and must treat their names as used.
    extra = [n for n in initialisers if n not in known]
    for n in extra:
        shell.graph.input.append(onnx.ValueInfoProto(name=n, type=tensor_type_proto(onnx.TensorProto.FLOAT, ())))
    try:
        inlined: onnx.GraphProto = onnx.inliner.inline_local_functions(shell, convert_version=True).graph
    except Exception as error:  # the inliner raises plain RuntimeError and others for bad models
        raise ModelError(f"{name}: its local functions cannot be inlined: {error}") from error
    kept = [i for i in inlined.input if i.name in known]
    del inlined.input[:]
    inlined.input.extend(kept)
    return inlined
