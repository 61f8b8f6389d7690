"""Finds the literal batch size in an entry file: the default value of ``batch_size`` in its ``input_provider``."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from roller.insight.trace.entry_file_providers import provider_aliases

_BYTE_ORDER_MARK = "\ufeff"
_PROVIDER, _PARAMETER = "input_provider", "batch_size"


@dataclass(frozen=True)
class BatchLiteral:
    """An integer literal in a source text.

    Parameters
    ----------
    start, end
        Offsets in characters (code points).
    line
        Line number, from 1.
    name
        Name of the module constant that the literal defines; ``""`` for the parameter's own default.
    """

    start: int
    end: int
    line: int
    value: int
    name: str = ""


@dataclass(frozen=True)
class NoBatchLiteral:
    """Reason why a source has no literal batch size, and the constants that may define it; ``line`` counts from 1."""

    line: int
    text: str
    candidates: tuple[BatchLiteral, ...] = ()


def find_batch_literal(source: str) -> BatchLiteral | NoBatchLiteral:
    r"""Return the literal batch size of a source, or the reason why there is none.

    Examples
    --------
    >>> source = "def input_provider(*, batch_size=16): ..."
    >>> literal = find_batch_literal(source)
    >>> literal.value, source[literal.start : literal.end]
    (16, '16')
    >>> find_batch_literal("SIZE = 32\ndef input_provider(batch_size=SIZE): ...").name
    'SIZE'
    """
    if source.startswith(_BYTE_ORDER_MARK):  # ast.parse accepts a byte order mark in bytes only
        found = find_batch_literal(source[1:])
        if isinstance(found, BatchLiteral):
            return _shift_offsets_by_one(found)
        return replace(found, candidates=tuple(map(_shift_offsets_by_one, found.candidates)))
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None) or 1
        return NoBatchLiteral(line, f"expected Python, got {getattr(error, 'msg', None) or 'what cannot be parsed'}.")
    names = provider_aliases(_PROVIDER)
    functions = [n for n in body if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef)) and n.name in names]
    constants = dict(_integer_constants(body, source))
    if not functions:
        return NoBatchLiteral(
            1, f"expected a function {_PROVIDER} with a default of {_PARAMETER}, got none.", tuple(constants.values())
        )
    given = functions[-1]
    default = dict(_parameter_defaults(given.args)).get(_PARAMETER)
    if default is None:
        return NoBatchLiteral(
            given.lineno, f"{given.name}: expected a default of {_PARAMETER}, got none. Write {_PARAMETER}=16."
        )
    if isinstance(default, ast.Constant) and _is_whole(default.value):
        return _literal_of_node(default, source)
    if isinstance(default, ast.Name) and default.id in constants:
        return constants[default.id]
    return NoBatchLiteral(
        default.lineno,
        f"{given.name}: expected a whole number as the default of {_PARAMETER}, or the name of one of the module, got "
        f"{ast.unparse(default)[:40]}. Write the number itself.",
        tuple(constants.values()),
    )  # fmt: skip


def batch_literal_data(source: str) -> dict[str, Any]:
    """Return the literal batch size as JSON-ready data, or the reason why there is none with the candidates.

    Examples
    --------
    >>> batch_literal_data("def input_provider(*, batch_size=16): ...")
    {'value': 16, 'line': 1, 'span': (33, 35), 'name': ''}
    """
    found = find_batch_literal(source)
    if isinstance(found, BatchLiteral):
        return _literal_data(found, source)
    candidates = [_literal_data(one, source) for one in found.candidates]
    return {"error": found.text, "line": found.line, "candidates": candidates}


def _literal_data(literal: BatchLiteral, source: str) -> dict[str, Any]:
    start = len(source[: literal.start].encode("utf-16-le")) // 2  # as JavaScript counts
    span = (start, start + literal.end - literal.start)
    return {"value": literal.value, "line": literal.line, "span": span, "name": literal.name}


def _shift_offsets_by_one(literal: BatchLiteral) -> BatchLiteral:
    return replace(literal, start=literal.start + 1, end=literal.end + 1)


def _parameter_defaults(arguments: ast.arguments) -> Iterator[tuple[str, ast.expr | None]]:
    plain = [*arguments.posonlyargs, *arguments.args]
    last = plain[len(plain) - len(arguments.defaults) :]
    yield from ((a.arg, value) for a, value in zip(last, arguments.defaults, strict=True))
    yield from ((a.arg, value) for a, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True))


def _is_whole(value: Any) -> bool:
    return type(value) is int and value > 0


def _integer_constants(body: list[ast.stmt], source: str) -> Iterator[tuple[str, BatchLiteral]]:
    """Yield the names and literals of the module's positive integer constants that are assigned exactly once."""
    found: dict[str, list[ast.expr]] = {}
    for node in body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        value = getattr(node, "value", None)
        for target in targets:
            if isinstance(target, ast.Name) and isinstance(value, ast.expr):
                found.setdefault(target.id, []).append(value)
    for name, values in found.items():
        if len(values) == 1 and isinstance(values[0], ast.Constant) and _is_whole(values[0].value):
            yield name, _literal_of_node(values[0], source, name)


def _literal_of_node(node: ast.Constant, source: str, name: str = "") -> BatchLiteral:
    assert node.end_lineno is not None and node.end_col_offset is not None and isinstance(node.value, int)
    start = _character_offset(source, node.lineno, node.col_offset)
    end = _character_offset(source, node.end_lineno, node.end_col_offset)
    return BatchLiteral(start, end, node.lineno, node.value, name)


def _character_offset(source: str, line: int, column: int) -> int:
    """Return the character offset of an ``ast`` position, whose column counts UTF-8 bytes."""
    lines = _split_lines_as_parser(source)
    return sum(map(len, lines[: line - 1])) + len(lines[line - 1].encode()[:column].decode())


def _split_lines_as_parser(source: str) -> list[str]:
    """Split a source into lines with their endings as Python's parser does: form feeds do not end a line."""
    lines, begin, at = [], 0, 0
    while at < len(source):
        if source[at] in "\r\n":
            at += 2 if source[at : at + 2] == "\r\n" else 1
            lines.append(source[begin:at])
            begin = at
        else:
            at += 1
    return [*lines, source[begin:]]
