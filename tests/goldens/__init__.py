"""Golden outputs: texts a change of meaning shows up in. ``ROLLER_UPDATE_GOLDENS=1 pytest tests`` rewrites them."""

from __future__ import annotations

import os
import re
from pathlib import Path

FOLDER = Path(__file__).parent
#: Numbers of another processor's mathematics differ in their last digits; a change of meaning is far above that.
_DIGITS = 1e-12
_NUMBER = re.compile(r"-?\d+\.\d+(?:e[-+]?\d+)?|-?\d+e[-+]?\d+")


def is_updating() -> bool:
    """Whether goldens are to be rewritten."""
    return os.environ.get("ROLLER_UPDATE_GOLDENS") == "1"


def assert_golden(name: str, text: str, *, numbers: bool = False) -> None:
    """Compare ``text`` with the golden file ``name``, or rewrite the file where asked to.

    Parameters
    ----------
    name
        File below ``tests/goldens``.
    text
        What it should hold.
    numbers
        Whether floating-point numbers in it may be off by 1e-12, relative. ``ROLLER_EXACT_GOLDENS=1`` compares those
        to the last bit as well: for whoever moves code on one machine.
    """
    path = FOLDER / name
    if is_updating():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.rstrip("\n") + "\n")
    assert path.exists(), f"{name}: no such golden; run with ROLLER_UPDATE_GOLDENS=1 and read what it wrote"
    expected, got = path.read_text().rstrip("\n").splitlines(), text.rstrip("\n").splitlines()
    near = numbers and os.environ.get("ROLLER_EXACT_GOLDENS") != "1"
    different = [
        n for n, (a, b) in enumerate(zip(expected, got, strict=False)) if not (a == b or (near and _near(a, b)))
    ]
    where = different[0] if different else min(len(expected), len(got))
    same = not different and len(expected) == len(got)
    assert same, (
        f"{name} differs in {len(different)} lines, first in line {where + 1}:\n"
        f"- {''.join(expected[where : where + 1])}\n+ {''.join(got[where : where + 1])}\n"
        "If that is meant, ROLLER_UPDATE_GOLDENS=1 rewrites it."
    )


def _near(one: str, other: str) -> bool:
    """Whether two lines are the same but for the last digits of their numbers."""
    if _NUMBER.sub("#", one) != _NUMBER.sub("#", other):
        return False
    pairs = zip(map(float, _NUMBER.findall(one)), map(float, _NUMBER.findall(other)), strict=True)
    return all(abs(a - b) <= _DIGITS * max(abs(a), abs(b)) for a, b in pairs)
