"""Parses operators from text such as ``conv2d(n=8, c=64, ...)``; bare names are read as strings, and no code is run."""

from __future__ import annotations

import ast
import inspect
from typing import Any

from roller.errors import ExprError, did_you_mean
from roller.expr import TensorExpr
from roller.ops.registry import REGISTRY


def parse(text: str) -> TensorExpr:
    """Build the operator that a call expression describes.

    Parameters
    ----------
    text
        ``name(arguments)`` with literal arguments, positional or by keyword. Quotes around string arguments may be
        omitted, because shells interpret quotes themselves: ``epilogue=(bias, clip(0, 6))``.

    Returns
    -------
    TensorExpr
        The operator.

    Raises
    ------
    ExprError
        If the text is not a call, the operator or an argument is unknown, an argument is missing, or a value is not a
        literal.

    Examples
    --------
    >>> str(parse("matmul(128, 64, k=32, epilogue=('relu',))"))
    'matmul[i=128 j=64 k=32] float32, epilogue relu(C_acc)'
    >>> str(parse("matmul(128, 64, 32, epilogue=(relu,))")) == str(parse("matmul(128, 64, 32, epilogue=('relu',))"))
    True
    """
    if not isinstance(text, str):
        raise ExprError(f"operator: expected text, got {type(text).__name__}. "
                        "Write for example 'matmul(m=128, n=64, k=32)'.")  # fmt: skip
    try:
        node = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as err:
        reason = err.msg if isinstance(err, SyntaxError) else str(err)
        raise ExprError(f"operator '{text}': expected 'name(argument=value, ...)', got a syntax error ({reason}). "
                        "Write for example 'matmul(m=128, n=64, k=32)'.") from err  # fmt: skip
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        raise ExprError(f"operator '{text}': expected 'name(argument=value, ...)'. "
                        "Write for example 'matmul(m=128, n=64, k=32)'.")  # fmt: skip
    name = node.func.id
    function = REGISTRY.get(name)
    if function is None:
        raise ExprError(f"operator '{name}': unknown operator{did_you_mean(name, REGISTRY) or '.'} "
                        f"Use one of {sorted(REGISTRY)}.")  # fmt: skip
    parameters = inspect.signature(function).parameters
    positional = [p.name for p in parameters.values() if p.kind is not inspect.Parameter.KEYWORD_ONLY]
    if len(node.args) > len(positional):
        raise ExprError(f"{name}: expected at most {len(positional)} positional arguments {positional}, "
                        f"got {len(node.args)}. Name the others.")  # fmt: skip
    values: dict[str, Any] = {}
    pairs = [*zip(positional, node.args, strict=False), *((k.arg, k.value) for k in node.keywords)]
    for argument, value in pairs:
        if argument is None or argument not in parameters:
            label = argument or "**"
            raise ExprError(f"{name}: unknown argument '{label}'{did_you_mean(label, parameters) or '.'} "
                            f"Use {list(parameters)}.")  # fmt: skip
        if argument in values:
            raise ExprError(f"{name}: argument '{argument}' is given twice. Give it once.")
        values[argument] = _parse_literal(name, argument, value, "str" in str(parameters[argument].annotation))
    missing = [p.name for p in parameters.values() if p.default is inspect.Parameter.empty and p.name not in values]
    if missing:
        raise ExprError(
            f"{name}: missing arguments {missing}. Write '{name}({', '.join(f'{m}=...' for m in missing)})'."
        )
    return _call_operator(name, function, values)


#: Python literals by their common spellings in other languages.
_OTHER_SPELLINGS = {"true": "True", "false": "False", "none": "None", "null": "None"}


class _QuoteBareNames(ast.NodeTransformer):
    """A transformer that turns bare names, and calls such as ``clip(0, 6)``, into strings."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Return the name as a string constant."""
        return ast.Constant(node.id)

    def visit_Call(self, node: ast.Call) -> ast.expr:
        """Return the source of the call as a string constant."""
        return ast.Constant(ast.unparse(node))


def _parse_literal(name: str, argument: str, node: ast.expr, takes_text: bool) -> Any:
    written = ast.unparse(node)
    plain = _OTHER_SPELLINGS.get(written.lower())
    if plain is not None and not takes_text and plain != written:
        raise ExprError(f"{name}: argument '{argument}': expected a literal of Python, got '{written}'. Write {plain}.")
    try:
        return ast.literal_eval(_QuoteBareNames().visit(node) if takes_text else node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError) as err:
        raise ExprError(f"{name}: argument '{argument}': expected a literal (number, string, tuple), got "
                        f"'{written}'. Write the value itself.") from err  # fmt: skip


def _call_operator(name: str, function: Any, values: dict[str, Any]) -> TensorExpr:
    try:
        expr: TensorExpr = function(**values)
        return expr
    except TypeError as err:
        raise ExprError(f"{name}: an argument has the wrong type ({err}). Check {values}.") from err
