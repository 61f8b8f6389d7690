"""``roller --list-operators``: list the operators and their arguments, taken from their signatures."""

from __future__ import annotations

import inspect
import textwrap

import typer

from roller.ops import REGISTRY
from roller.ops.elementwise_functions import ELEMENT_FUNCTIONS, ElementFunction

_WIDTH, _INDENT = 100, "    "


def print_operators() -> None:
    """Print every operator with its arguments and defaults, and the epilogue steps."""
    for line in operator_lines():
        typer.echo(line)


def operator_lines() -> list[str]:
    """Return the lines of the list of operators and epilogue steps.

    Examples
    --------
    >>> print(operator_lines()[0])
    Operators, as OP of construct, compile, predict and sensitivity; what has no default must be given:
    """
    lines = ["Operators, as OP of construct, compile, predict and sensitivity; what has no default must be given:"]
    for name, function in sorted(REGISTRY.items()):
        arguments = [_parameter_text(p) for p in inspect.signature(function).parameters.values()]
        text = f"{name}({', '.join(arguments)})"
        lines += ["", *textwrap.wrap(text, _WIDTH, initial_indent="  ", subsequent_indent=_INDENT)]
        lines += textwrap.wrap(_docstring_summary(function), _WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT)
    lines += ["", "Steps of epilogue=('bias', 'relu') and functions of elementwise, in the order they are applied:"]
    steps = [
        "bias (one number per output channel)",
        *(_epilogue_step_text(n, f) for n, f in sorted(ELEMENT_FUNCTIONS.items())),
    ]
    return lines + textwrap.wrap(", ".join(steps), _WIDTH, initial_indent="  ", subsequent_indent="  ")


def _parameter_text(parameter: inspect.Parameter) -> str:
    if parameter.default is inspect.Parameter.empty:
        return parameter.name
    return f"{parameter.name}={parameter.default!r}"


def _docstring_summary(function: object) -> str:
    return (inspect.getdoc(function) or "").partition("\n\n")[0].replace("\n", " ").replace("``", "'")


def _epilogue_step_text(name: str, function: ElementFunction) -> str:
    """Return the syntax of an epilogue step with its parameters, and a note if it reads a second tensor."""
    numbers = f"({', '.join('xyz'[: function.parameters])})" if function.parameters else ""
    return f"{name}{numbers}{' (with a tensor)' if function.tensors > 1 else ''}"
