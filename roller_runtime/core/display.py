"""Human-readable text: one-line ``repr``, HTML tables for notebooks, and times and capacities with units."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from typing import Any

from roller_runtime.errors import printable

#: Maximum number of characters of a ``repr``, so that it fits two lines of an 80-column terminal.
MOST_CHARACTERS = 118


def one_line_repr(kind: str, *parts: str) -> str:
    """Return ``<kind part, part>`` on one line of bounded length, cut with an ellipsis.

    >>> one_line_repr("RProgram", "cpu/tiled", "")
    '<RProgram cpu/tiled>'
    >>> len(one_line_repr("Plan", "x" * 500))
    118
    """
    text = printable(" ".join(", ".join(p for p in parts if p).split()))
    return f"<{truncate_text(f'{kind} {text}', MOST_CHARACTERS - 2)}>"


def truncate_text(text: str, most: int) -> str:
    """Return the text cut to at most ``most`` characters.

    >>> truncate_text("abcdef", 6), truncate_text("abcdefg", 6)
    ('abcdef', 'abcde…')
    """
    return text if len(text) <= most else text[: most - 1] + "…"


def non_default_repr(value: Any) -> str:
    """Return ``Name(field=value, ...)`` for a dataclass, with only the fields that differ from their defaults.

    >>> from roller import ConstructOptions
    >>> non_default_repr(ConstructOptions(top_k=3))
    'ConstructOptions(top_k=3)'
    """
    given = (f"{f.name}={getattr(value, f.name)!r}" for f in fields(value) if not _is_default(value, f))
    return f"{type(value).__name__}({truncate_text(', '.join(given), MOST_CHARACTERS - len(type(value).__name__) - 2)})"


def _is_default(value: Any, field: Field[Any]) -> bool:
    found = getattr(value, field.name)
    if field.default_factory is not MISSING:
        return bool(found == field.default_factory())
    return found is field.default or bool(found == field.default)


def exact_repr(value: Any) -> str:
    """Return a text that is equal only for identical nested dataclasses: it distinguishes 1 from 1.0 and 0.0 from -0.0.

    >>> from roller_runtime.core.kernel_argument import Argument
    >>> exact_repr((Argument("x", "input", (2,), "int8"), -0.0))
    "(Argument('x', 'input', (2), 'int8'), -0.0)"
    """
    if is_dataclass(value) and not isinstance(value, type):
        inner = ", ".join(exact_repr(getattr(value, name)) for name in _repr_field_names(type(value)))
        return f"{type(value).__name__}({inner})"
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(exact_repr, value))})"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{exact_repr(k)}: {exact_repr(v)}" for k, v in value.items()) + "}"
    return repr(value)


@cache
def _repr_field_names(kind: type) -> tuple[str, ...]:
    return tuple(f.name for f in fields(kind) if f.repr)


def html_table(title: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return an HTML table for a notebook; all cells are escaped.

    >>> html_table("a < b", ("n",), [[1]])
    '<table><caption>a &lt; b</caption><tr><th>n</th></tr><tr><td>1</td></tr></table>'
    """
    head = "".join(f"<th>{html.escape(name)}</th>" for name in header)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><caption>{html.escape(title)}</caption><tr>{head}</tr>{body}</table>"


def seconds_text(value: float | None) -> str:
    """Return a time with a readable unit.

    >>> seconds_text(0.01099), seconds_text(2.5e-6), seconds_text(None)
    ('10.99 ms', '2.5 us', '-')
    """
    if value is None:
        return "-"
    for factor, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "us")):
        if abs(value) * factor >= 1 or unit == "us":
            return f"{value * factor:.4g} {unit}"
    return f"{value:.4g} s"


def bytes_text(count: float, digits: int = 3) -> str:
    """Return a capacity with a binary unit.

    >>> bytes_text(98304), bytes_text(99), bytes_text(16e9)
    ('96 KiB', '99 B', '14.9 GiB')
    """
    for factor, unit in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= factor:
            return f"{count / factor:.{digits}g} {unit}"
    return f"{count:g} B"
