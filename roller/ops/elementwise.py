"""Chains of element-wise functions, fused into one stage."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from roller.errors import ExprError, shown
from roller.expr import Scalar, Stage, Tensor, TensorExpr
from roller.ops.elementwise_functions import parse_element_function
from roller.ops.operator_argument_checks import (
    check_shape,
    compose_epilogue,
    identity_indices,
    normalize_function_names,
    resolve_dtypes,
)
from roller.ops.registry import register_operator
from roller.ops.tensor_rows import axes_of_dimensions, broadcast_index


@register_operator(
    "Relu", "Gelu", "Sigmoid", "Tanh", "Exp", "Log", "Sqrt", "Neg", "Abs", "Add", "Sub", "Mul", "Div", "Max", "Min",
    "Pow", "Erf", "Floor", "Ceil", "Clip", "LeakyRelu", "HardSwish", "HardSigmoid", "Softplus", "Elu", "Reciprocal",
    "Identity",
)  # fmt: skip
def elementwise(
    names: Sequence[str] | str,
    shape: Sequence[int] | int,
    other_shapes: Sequence[Sequence[int]] = (),
    *,
    dtype: str = "float32",
    acc_dtype: str | None = None,
    out_dtype: str | None = None,
    epilogue: Sequence[str] | str = (),
) -> TensorExpr:
    """Return ``names[-1](... names[0](X))`` as one stage over axes ``d0 d1 ...``.

    Parameters
    ----------
    names
        One function or a chain applied left to right (``"relu"``, ``("add", "clip(0, 6)")``). A binary
        function takes the next operand; ``"bias_add"`` takes a vector along the last axis.
    shape
        Shape of ``X`` (elements).
    other_shapes
        Shapes of the further operands in order, broadcast as in NumPy; operands without an entry have ``shape``, or its
        last extent for ``"bias_add"``.
    dtype, acc_dtype, out_dtype
        Storage, arithmetic and output dtypes.
    epilogue
        Further functions, fused into the same stage.

    Returns
    -------
    TensorExpr
        Inputs ``X``, ``X1``, ...; output ``Y``.

    Raises
    ------
    ExprError
        If a function is unknown, the shapes do not broadcast, or there are more shapes than operands.

    Examples
    --------
    >>> import roller
    >>> str(roller.ops.elementwise(("add", "relu"), (17, 11), other_shapes=((11,),)))
    'elementwise[d0=17 d1=11] float32'
    """
    where = "elementwise"
    chain = normalize_function_names(where, "names", names)
    if not chain:
        raise ExprError(f"{where}: argument 'names': expected at least one function, got none. Use for example 'relu'.")
    first = check_shape(where, shape)
    t = resolve_dtypes(where, dtype, acc_dtype, out_dtype)
    steps = [(n, *parse_element_function("add" if n == "bias_add" else n, f"{where}: argument 'names'", t.is_float))
             for n in chain]  # fmt: skip
    others: list[tuple[int, ...]] = []
    if not isinstance(other_shapes, (tuple, list)):
        raise ExprError(f"{where}: argument 'other_shapes': expected a list of shapes, got {shown(other_shapes)}. "
                        "Give one shape per further operand.")  # fmt: skip
    given = [check_shape(where, s, "other_shapes") for s in other_shapes]
    for name, function, _ in steps:
        if function.tensors == 2:
            default = first[-1:] if name == "bias_add" else first
            others.append(given[len(others)] if len(others) < len(given) else default)
    if len(given) > len(others):
        raise ExprError(
            f"{where}: argument 'other_shapes': {len(others)} functions of {list(chain)} take an operand, got "
            f"{len(given)} shapes. Remove a shape or add a binary function."
        )
    try:
        out = tuple(int(e) for e in np.broadcast_shapes(first, *others))
    except ValueError as err:
        raise ExprError(f"{where}: shapes {[first, *others]} do not broadcast to one shape. Make their trailing "
                        "dimensions equal or 1.") from err  # fmt: skip
    axes = axes_of_dimensions(out)
    at = identity_indices(axes)
    inputs = [Tensor("X", first, dtype), *(Tensor(f"X{i + 1}", s, dtype) for i, s in enumerate(others))]
    value: Scalar = t.load("X", broadcast_index(first, at, out))
    rest = iter(inputs[1:])
    for _, function, parameters in steps:
        operands = [next(rest) for _ in range(function.tensors - 1)]
        loads = [t.load(x.name, broadcast_index(x.shape, at, out)) for x in operands]
        value = function.build(t.const, value, *loads, *parameters)
    stage = Stage(Tensor("Y", out, t.out), axes, at, value, None, t.acc)
    return compose_epilogue(where, inputs, (stage,), t, epilogue=epilogue)
