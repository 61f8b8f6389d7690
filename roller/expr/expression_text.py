"""Text forms of expressions for messages and reports; nothing parses them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from roller.expr.scalar import Call, Cast, Const, IndexValue, Load, Scalar
from roller_runtime.core.display import truncate_text

if TYPE_CHECKING:
    from roller.expr.tensor_expr import Stage, TensorExpr

#: Infix functions: their operator and precedence.
_INFIX = {"add": ("+", 1), "sub": ("-", 1), "mul": ("*", 2), "div": ("/", 2)}
#: Precedence above all infix operators.
_ATOM = 3
#: Maximum number of characters in the text of an epilogue.
_MOST = 48


def expr_text(expr: TensorExpr) -> str:
    """Return name, extents, dtypes and epilogue of an expression on one line.

    Examples
    --------
    >>> from roller import ops
    >>> print(expr_text(ops.matmul(8, 4, 2, dtype="float16", epilogue=("bias", "relu"))))
    matmul[i=8 j=4 k=2] float16 (sum in float32), epilogue relu(C_acc + bias)
    """
    axes = " ".join(f"{a.name}={a.extent}" for a in expr.axes)
    last = expr.stages[-1]
    ending = ""
    if len(expr.stages) > 1 and last.combiner is None and expr.anchor is not last:
        ending = f", {'then' if expr.epilogue is None else 'epilogue'} {truncate_text(scalar_text(last.body), _MOST)}"
    return f"{expr.name}[{axes}] {_dtypes_text(expr)}{ending}"


def _dtypes_text(expr: TensorExpr) -> str:
    """Return the dtypes of inputs and outputs, and the accumulator's dtype if it differs from both."""
    read = ", ".join(dict.fromkeys(t.dtype for t in expr.inputs))
    written = ", ".join(dict.fromkeys(t.dtype for t in expr.output_tensors))
    anchor = expr.anchor
    within = f" ({anchor.combiner} in {anchor.acc_dtype})" if anchor.combiner is not None else ""
    plain = written if read in ("", written) else f"{read} -> {written}"
    return plain + (within if anchor.acc_dtype not in (read, written) else "")


def stage_text(stage: Stage) -> str:
    """Return the computation of a stage as an assignment.

    Examples
    --------
    >>> from roller import ops
    >>> stage_text(ops.matmul(8, 4, 2).stages[0])
    'C[i=8 j=4] = sum over k=2 of A * B'
    """
    spatial, reduced = (" ".join(f"{a.name}={a.extent}" for a in axes) for axes in (
        stage.spatial_axes, stage.reduction_axes))  # fmt: skip
    over = "" if stage.combiner is None else f"{stage.combiner} over {reduced} of "
    return f"{stage.name}[{spatial}] = {over}{scalar_text(stage.body)}"


def scalar_text(node: Scalar) -> str:
    """Return a scalar tree as text, without indices and conversions.

    Examples
    --------
    >>> x = Load("X", ())
    >>> scalar_text(Call("mul", (Call("add", (x, Const(1.0))), Call("exp", (x,)))))
    '(X + 1) * exp(X)'
    """
    return _text_and_precedence(node)[0]


def _text_and_precedence(node: Scalar) -> tuple[str, int]:
    """Return a tree as text, and the precedence of the tree's outermost function."""
    if isinstance(node, Cast):
        return _text_and_precedence(node.arg)
    if isinstance(node, Load):
        return node.tensor, _ATOM
    if isinstance(node, Const):
        return f"{node.value:g}", _ATOM
    if isinstance(node, IndexValue):
        return "index", _ATOM
    if node.fn in _INFIX:
        sign, binds = _INFIX[node.fn]
        left, right = (_text_and_precedence(a) for a in node.args)
        first = left[0] if left[1] >= binds else f"({left[0]})"
        # Subtrahends and divisors of equal precedence keep their parentheses.
        second = right[0] if right[1] > binds or (right[1] == binds and node.fn in ("add", "mul")) else f"({right[0]})"
        return f"{first} {sign} {second}", binds
    if node.fn == "max" and isinstance(node.args[1], Const) and node.args[1].value == 0:
        return f"relu({scalar_text(node.args[0])})", _ATOM
    return _function_call_text(node), _ATOM


def _function_call_text(node: Call) -> str:
    return f"{node.fn}({', '.join(map(scalar_text, node.args))})"
