"""Functions for operators that no tensor expression describes, using a device's array module (NumPy or CuPy).

A function takes the array module, input arrays and the step's attributes, and returns outputs of the declared shapes
and dtypes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from roller_runtime.core.dtypes import numpy_dtype
from roller_runtime.session import sample_scatter_pool_functions

Function: TypeAlias = Callable[[Any, Sequence[Any], Mapping[str, Any]], tuple[Any, ...]]

#: Functions by the names that steps use.
FUNCTIONS: dict[str, Function] = {}


def library_function(function: Function) -> Function:
    """Register the decorated function under its own name."""
    FUNCTIONS[function.__name__] = function
    return function


def _wrap_negative_indices(xp: Any, indices: Any, size: int) -> Any:
    """Return indices with negative ones counted from the end; raise ``IndexError`` for invalid ones."""
    wrapped = xp.where(indices < 0, indices + size, indices)
    if wrapped.size and (int(wrapped.min()) < 0 or int(wrapped.max()) >= size):
        raise IndexError(f"indices: expected -{size} to {size - 1}, got {int(indices.min())} to {int(indices.max())}")
    return wrapped


@library_function
def gather(xp: Any, inputs: Sequence[Any], attributes: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return slices of ``inputs[0]`` along ``axis`` at the indices ``inputs[1]``."""
    data, indices = inputs
    axis = attributes["axis"]
    return (xp.take(data, _wrap_negative_indices(xp, indices, data.shape[axis]), axis=axis),)


def _element_coordinates(xp: Any, indices: Any, shape: Sequence[int], axis: int) -> tuple[Any, ...]:
    """Return coordinates of elements: ``indices`` along ``axis``, and their own positions along other dimensions."""
    if not shape:  # a scalar has one element
        _wrap_negative_indices(xp, indices, 1)
        return (Ellipsis,)
    where = list(xp.meshgrid(*(xp.arange(n) for n in indices.shape), indexing="ij", sparse=True))
    where[axis] = _wrap_negative_indices(xp, indices, shape[axis])
    return tuple(where)


@library_function
def gather_elements(xp: Any, inputs: Sequence[Any], attributes: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return single elements of ``inputs[0]`` at the indices ``inputs[1]`` along ``axis``."""
    data, indices = inputs
    return (data[_element_coordinates(xp, indices, data.shape, attributes["axis"])],)


def _tuple_coordinates(xp: Any, indices: Any, shape: Sequence[int], batch_dims: int = 0) -> tuple[Any, ...]:
    """Return coordinates: those of the batch dimensions, then those in the tuples on the last axis of ``indices``."""
    lead = xp.meshgrid(*(xp.arange(n) for n in indices.shape[:-1]), indexing="ij", sparse=True) if batch_dims else []
    named = (_wrap_negative_indices(xp, indices[..., i], shape[batch_dims + i]) for i in range(indices.shape[-1]))
    return (*lead[:batch_dims], *named)


@library_function
def gather_nd(xp: Any, inputs: Sequence[Any], attributes: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return slices of ``inputs[0]`` at the index tuples along the last axis of ``inputs[1]``."""
    data, indices = inputs
    return (data[_tuple_coordinates(xp, indices, data.shape, attributes["batch_dims"])],)


def _scatter_updates(xp: Any, data: Any, where: tuple[Any, ...], updates: Any, reduction: str) -> Any:
    """Return a copy of ``data`` with ``updates`` written or reduced at ``where``."""
    out = data.copy()
    if reduction == "none":
        out[where] = updates
    else:
        ufunc = {"add": xp.add, "mul": xp.multiply, "max": xp.maximum, "min": xp.minimum}[reduction]
        ufunc.at(out, where, updates)
    return out


@library_function
def scatter_elements(xp: Any, inputs: Sequence[Any], attributes: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return ``inputs[0]`` with the elements ``inputs[2]`` written at the positions ``inputs[1]`` along ``axis``."""
    data, indices, updates = inputs
    where = _element_coordinates(xp, indices, data.shape, attributes["axis"])
    return (_scatter_updates(xp, data, where, updates, attributes["reduction"]),)


@library_function
def scatter_nd(xp: Any, inputs: Sequence[Any], attributes: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return ``inputs[0]`` with the slices ``inputs[2]`` written at the index tuples ``inputs[1]``."""
    data, indices, updates = inputs
    return (_scatter_updates(xp, data, _tuple_coordinates(xp, indices, data.shape), updates, attributes["reduction"]),)


@library_function
def top_k(xp: Any, inputs: Sequence[Any], attributes: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the ``k`` largest (or smallest) elements along ``axis`` and their positions; ties stay in order."""
    (data,) = inputs
    axis, size = attributes["axis"], data.shape[attributes["axis"]]
    if attributes["largest"]:
        # A stable ascending sort of the reversed data, reversed: descending, with ties in order of position.
        order = size - 1 - xp.flip(xp.argsort(xp.flip(data, axis), axis=axis, kind="stable"), axis)
    else:
        order = xp.argsort(data, axis=axis, kind="stable")
    order = xp.take(order, xp.arange(attributes["k"]), axis=axis)
    return xp.take_along_axis(data, order, axis=axis), order.astype("int64")


@library_function
def reverse_sequence(xp: Any, inputs: Sequence[Any], attributes: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return ``inputs[0]`` with the first ``inputs[1][b]`` steps of every batch ``b`` reversed."""
    data, lengths = inputs
    batch, time = attributes["batch_axis"], attributes["time_axis"]
    shape = [1] * data.ndim
    shape[batch] = -1
    steps = xp.arange(data.shape[time]).reshape([-1 if d == time else 1 for d in range(data.ndim)])
    limit = lengths.reshape(shape)
    order = xp.where(steps < limit, limit - 1 - steps, steps)
    return (xp.take_along_axis(data, xp.broadcast_to(order, data.shape), axis=time),)


def _accumulate(xp: Any, data: Any, attributes: Mapping[str, Any], function: Any, neutral: int) -> Any:
    axis = attributes["axis"]
    data = xp.flip(data, axis) if attributes["reverse"] else data
    out = function(data, axis=axis).astype(data.dtype)
    if attributes["exclusive"]:
        first = xp.full_like(xp.take(out, xp.arange(1), axis=axis), neutral)
        out = xp.concatenate([first, xp.take(out, xp.arange(data.shape[axis] - 1), axis=axis)], axis=axis)
    return xp.flip(out, axis) if attributes["reverse"] else out


@library_function
def cumsum(xp: Any, inputs: Sequence[Any], attributes: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return cumulative sums along ``axis``."""
    return (_accumulate(xp, inputs[0], attributes, xp.cumsum, 0),)


@library_function
def cumprod(xp: Any, inputs: Sequence[Any], attributes: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return cumulative products along ``axis``."""
    return (_accumulate(xp, inputs[0], attributes, xp.cumprod, 1),)


@library_function
def determinant(xp: Any, inputs: Sequence[Any], attributes: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return determinants of matrices."""
    return (xp.linalg.det(inputs[0]).astype(inputs[0].dtype),)


@library_function
def bit_cast(xp: Any, inputs: Sequence[Any], attributes: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the bits of ``inputs[0]`` reinterpreted as ``dtype``, which has the same width."""
    return (xp.ascontiguousarray(inputs[0]).view(numpy_dtype(attributes["dtype"])).reshape(inputs[0].shape),)


for _function in (
    sample_scatter_pool_functions.grid_sample,
    sample_scatter_pool_functions.roi_align,
    sample_scatter_pool_functions.col2im,
    sample_scatter_pool_functions.max_unpool,
    sample_scatter_pool_functions.tensor_scatter,
):
    library_function(_function)
