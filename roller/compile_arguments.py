"""Checks and converts the arguments of ``compile``, ``construct`` and ``predict``."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from roller.errors import ExprError, RollerError, shown
from roller.expr import Tensor, TensorExpr
from roller.expr.check_operand_dtypes import check_arithmetic
from roller.hardware import DeviceSpec, list_specs, load_spec
from roller.templates.common.options import ConstructOptions

if TYPE_CHECKING:
    from roller.artifact import Constant
    from roller.backends.parse_device_names import DeviceHandle


def parse_expression(expr: Any) -> TensorExpr:
    """Return ``expr`` as a TensorExpr, converted from TVM TE tensors or a PrimFunc if necessary."""
    read = expr if isinstance(expr, TensorExpr) else _read_tvm_expression(expr)
    check_arithmetic(read)
    return read


def _read_tvm_expression(expr: Any) -> TensorExpr:
    listed = isinstance(expr, Sequence) and not isinstance(expr, (str, bytes)) and len(expr) > 0
    if all(type(e).__module__.partition(".")[0] == "tvm" for e in (expr if listed else [expr])):
        from roller.te.reader import read

        return read(expr)
    raise ExprError(
        f"expression: expected a TensorExpr, a list of TVM TE tensors or a PrimFunc, got {type(expr).__name__}. "
        "Build one with roller.ops, or roller.ops.parse(text) for text."
    )


def spec_and_local_device(
    device: str | DeviceSpec, spec: str | DeviceSpec | None = None
) -> tuple[DeviceSpec, DeviceHandle | None]:
    """Return the specification to construct for, and the local device to run on (``None`` if ``device`` names none)."""
    from roller.backends.parse_device_names import is_reachable_device_name

    if not (isinstance(device, str) and is_reachable_device_name(device)):
        if spec is not None:
            named = shown(device)
            raise RollerError(f"spec: expected beside a device to run on (cuda:0), got {named}. Pass it as device.")
        return _resolve_spec(device), None
    from roller.backends.device_process import resolve_device  # reaches the device

    fitting, handle = resolve_device(device, list_specs(), load_spec)
    if spec is None:
        return fitting, handle
    given = _resolve_spec(spec)
    wanted, got = fitting.target.get("arch"), given.target.get("arch")
    if wanted != got:
        raise RollerError(f"spec: expected one of '{wanted}', which {device} is, got '{given.name}' of '{got}'.")
    return given, handle


def _resolve_spec(device: str | DeviceSpec) -> DeviceSpec:
    if isinstance(device, DeviceSpec):
        return device
    if not isinstance(device, (str, os.PathLike)):
        raise RollerError(
            f"device: expected the name of a spec, a path or a DeviceSpec, got {type(device).__name__}. "
            "`roller devices` lists the names."
        )
    return load_spec(device)


def resolve_options(options: ConstructOptions | None, top_k: int | Literal["auto"] | None) -> ConstructOptions:
    """Return ``options`` (the defaults if ``None``) with ``top_k`` replaced unless it is ``None``."""
    chosen = ConstructOptions() if options is None else options
    if not isinstance(chosen, ConstructOptions):
        raise RollerError(
            f"options: expected a ConstructOptions, got {type(chosen).__name__}. Write ConstructOptions(top_k=3)."
        )
    return chosen if top_k is None else replace(chosen, top_k=top_k)


def name_and_copy_constants(
    constants: Mapping[str, Any] | None, expression: TensorExpr, options: ConstructOptions
) -> tuple[ConstructOptions, tuple[Constant, ...]]:
    """Return the options with the constants' names filled in, and copies of the constants with input positions."""
    from roller.artifact import Constant  # not needed by construction and prediction

    if constants is not None and not isinstance(constants, Mapping):
        raise RollerError(
            f"constants: expected a mapping from names of inputs to arrays, got {type(constants).__name__}. "
            "Write constants={'B': array}."
        )
    given = {} if constants is None else dict(constants)
    for name in given:
        if not isinstance(name, str):
            got = shown(name)
            raise RollerError(f"constants: expected names of inputs, got {got}. Write constants={{'B': array}}.")
    for name in options.constants:
        if name not in given:
            raise RollerError(
                f"constants: expected a value for '{name}', which the options name, got {shown(sorted(given))}. "
                f"Pass constants={{'{name}': array}}."
            )
    chosen = replace(options, constants=tuple(given))
    positions = chosen.constants_of(expression)
    tensors = [expression.inputs[n] for n in positions]
    return chosen, tuple(
        Constant(n, _encode_constant(given[t.name], t)) for n, t in zip(positions, tensors, strict=True)
    )


def _encode_constant(value: Any, tensor: Tensor) -> bytes:
    where = f"constants: '{tensor.name}'"
    array: np.ndarray = value
    if not isinstance(value, np.ndarray):
        if not hasattr(value, "__dlpack__"):
            raise RollerError(
                f"{where}: expected a NumPy or DLPack array, got {type(value).__name__}. Convert it with numpy.asarray."
            )
        from roller_runtime.core.foreign_array_checks import check_tensor_has_values, host_copy_hint

        try:
            check_tensor_has_values(value)
            array = np.from_dlpack(value)
        except (RuntimeError, BufferError, TypeError, ValueError) as err:
            raise RollerError(
                f"{where}: cannot view {type(value).__name__} as host memory ({err}). {host_copy_hint(value)}"
            ) from err
    if tuple(array.shape) != tensor.shape:
        raise RollerError(
            f"{where}: expected shape {tensor.shape}, got {tuple(array.shape)}. Reshape it or compile for its shape."
        )
    if array.dtype.name != tensor.dtype or not array.dtype.isnative:
        raise RollerError(
            f"{where}: expected dtype {tensor.dtype}, got {array.dtype}. Convert it with .astype('{tensor.dtype}')."
        )
    data: bytes = array.tobytes()
    return data
