"""Converts ONNX element types, shapes and attributes to plain Python values."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any

import numpy as np
import onnx

from roller.errors import ModelError
from roller_runtime.plan.program_steps import Value

#: Maximum size of a tensor in bytes; a model with a larger one is refused as malicious or mistaken.
MAX_VALUE_BYTES = 1 << 36


@cache
def dtype_name(element_type: int) -> str | None:
    """Return the NumPy-style name of an ONNX element type; ``None`` if there is none (strings, undefined)."""
    try:
        found = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(element_type))
    except (KeyError, TypeError, ValueError):
        return None
    return None if found.kind == "O" else found.name


@cache
def element_type(dtype: np.dtype[Any]) -> int:
    """Return the ONNX element type of a NumPy dtype."""
    return int(onnx.helper.np_dtype_to_tensor_dtype(dtype))


@lru_cache(maxsize=4096)
def tensor_type_proto(kind: int, shape: tuple[int, ...]) -> onnx.TypeProto:
    """Return the ONNX type of a tensor; ``kind`` is an ONNX element type."""
    return onnx.helper.make_tensor_type_proto(kind, shape)


def value_of_array(name: str, array: np.ndarray) -> Value:
    """Return the type of an array."""
    return Value(name, tuple(int(s) for s in array.shape), array.dtype.name)


def declared_shape(declared: onnx.TypeProto) -> tuple[int | str | None, ...] | None:
    """Return the declared dimensions as numbers, symbols or ``None``; ``None`` for an unknown rank."""
    tensor = declared.tensor_type
    if declared.WhichOneof("value") != "tensor_type" or not tensor.HasField("shape"):
        return None
    dims: list[int | str | None] = []
    for dim in tensor.shape.dim:
        which = dim.WhichOneof("value")
        dims.append(int(dim.dim_value) if which == "dim_value" else (dim.dim_param or None) if which else None)
    return tuple(dims)


def static_value_or_reason(name: str, declared: onnx.TypeProto) -> Value | str:
    """Return the type of a value, or the reason why it cannot be compiled."""
    which = declared.WhichOneof("value")
    if which != "tensor_type":
        return f"'{name}' is a {(which or 'value without a type').removesuffix('_type').replace('_', ' ')}, no tensor"
    dtype = dtype_name(declared.tensor_type.elem_type)
    if dtype is None:
        try:
            text = onnx.TensorProto.DataType.Name(declared.tensor_type.elem_type)
        except ValueError:
            text = str(declared.tensor_type.elem_type)
        return f"'{name}' is of element type {text.lower()}, which is not compiled"
    shape = declared_shape(declared)
    if shape is None or not all(isinstance(d, int) for d in shape):
        return f"the shape of '{name}' is not known"
    if any(isinstance(d, int) and d < 0 for d in shape):
        return f"'{name}' has a negative dimension: {list(shape)}"
    return Value(name, tuple(d for d in shape if isinstance(d, int)), dtype)


def reason_if_too_large(value: Value) -> str | None:
    """Return the reason why a value is too large; ``None`` if it is not."""
    nbytes = value.elements * np.dtype(onnx_dtype(value.dtype)).itemsize
    if nbytes > MAX_VALUE_BYTES:
        return f"'{value.name}' of shape {list(value.shape)} takes {nbytes} bytes, more than {MAX_VALUE_BYTES}"
    return None


@cache
def onnx_dtype(name: str) -> np.dtype[Any]:
    """Return the dtype called ``name``, from ``ml_dtypes`` if NumPy lacks it."""
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes

        found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return found


def attribute_to_python(attribute: onnx.AttributeProto, where: str) -> Any:
    """Return an attribute as a plain Python value: int, float, str, tuples of them, or an array."""
    kind = attribute.type
    proto = onnx.AttributeProto
    if attribute.ref_attr_name:
        raise ModelError(f"{where}: attribute '{attribute.name}' refers to one of a function, and this is none.")
    if kind == proto.STRING:
        return attribute.s.decode("utf-8", errors="replace")
    if kind == proto.STRINGS:
        return tuple(s.decode("utf-8", errors="replace") for s in attribute.strings)
    if kind in (proto.INT, proto.FLOAT):
        return int(attribute.i) if kind == proto.INT else float(attribute.f)
    if kind in (proto.INTS, proto.FLOATS):
        return tuple(attribute.ints) if kind == proto.INTS else tuple(attribute.floats)
    if kind == proto.TENSOR:
        return inline_tensor_to_array(attribute.t, where)
    if kind == proto.SPARSE_TENSOR:
        return _sparse_to_dense(attribute.sparse_tensor, where)
    raise ModelError(f"{where}: attribute '{attribute.name}' of kind {kind} is no plain value.")


def inline_tensor_to_array(tensor: onnx.TensorProto, where: str) -> np.ndarray:
    """Return a tensor as an array; its data must be in the model."""
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        raise ModelError(f"{where}: tensor '{tensor.name}' lies outside the model, where only initialisers may.")
    _check_claimed_elements(tensor, where)
    try:
        return np.asarray(onnx.numpy_helper.to_array(tensor))
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise ModelError(f"{where}: the data of tensor '{tensor.name}' does not fit its type: {error}") from None


def _check_claimed_elements(tensor: onnx.TensorProto, where: str) -> None:
    """Refuse a tensor with more elements than its data can contain, before any allocation."""
    claimed = 1
    for dim in tensor.dims:
        if dim < 0:
            raise ModelError(f"{where}: tensor '{tensor.name}' has a negative dimension: {list(tensor.dims)}.")
        claimed *= dim
    if claimed > 4 * max(tensor.ByteSize(), 1):  # no dtype has more than four elements per byte
        raise ModelError(
            f"{where}: tensor '{tensor.name}' claims {claimed} elements, and its data has {tensor.ByteSize()} bytes. "
            "The model is damaged."
        )


def _sparse_to_dense(sparse: onnx.SparseTensorProto, where: str) -> np.ndarray:
    shape = tuple(sparse.dims)
    values, at = inline_tensor_to_array(sparse.values, where), inline_tensor_to_array(sparse.indices, where)
    if min(shape, default=1) < 0 or int(np.prod([float(s) for s in shape])) > 1 << 26:
        raise ModelError(f"{where}: a sparse tensor of shape {list(shape)} is not expanded.")
    dense = np.zeros(shape, values.dtype)
    try:
        if at.ndim == 1:
            dense.reshape(-1)[at] = values
        else:
            dense[tuple(at.T)] = values
    except (IndexError, ValueError) as error:
        raise ModelError(f"{where}: the indices of a sparse tensor do not fit it: {error}") from None
    return dense
