"""Bracket matching in C and PTX text."""

from __future__ import annotations

from roller.errors import EmulationError


def end_of_bracket(text: str, start: int) -> int:
    """Return the position after the bracket that closes the bracket at ``start``."""
    pairs = {"(": ")", "[": "]", "{": "}"}
    stack: list[str] = []
    for i in range(start, len(text)):
        c = text[i]
        if c in pairs:
            stack.append(pairs[c])
        elif stack and c == stack[-1]:
            stack.pop()
            if not stack:
                return i + 1
    raise EmulationError("emulator: a bracket of the CUDA source is never closed. Check the source.")


def split_outside_brackets(text: str, separator: str) -> list[str]:
    """Split at separators outside brackets and strings; with the separator ``:``, ``::`` separates twice."""
    parts, depth, start, quoted = [], 0, 0, False
    for i, c in enumerate(text):
        if c == '"' and text[i - 1 : i] != "\\":
            quoted = not quoted
        elif quoted:
            continue
        elif c in "([{":
            depth += 1
        elif c in ")]}":
            depth -= 1
        elif c == separator and depth == 0:
            parts.append(text[start:i])
            start = i + 1
    return [*parts, text[start:]]
