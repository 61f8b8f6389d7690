"""The name of a program: all its fields on one line, from which the program can be read back.

``gpu/tiled register[i=8 j=4] shared[i=128 j=64] vector=j:4 staged=A,B stages=3``: fields with default values are left
out, and an ambiguous name of an axis or tensor is written as a JSON string.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from roller.errors import TileError, bounded, did_you_mean

_STRING = r'"(?:[^"\\]|\\.)*"'
_PLAIN = re.compile(r"[^\s\[\]=,\"']+")
_HEAD = re.compile(r"\s*(\w+)/(\w+)(?=\s|$)")
_TILE = re.compile(rf'\s*(\w+)\[((?:{_STRING}|[^"\]])*)\](?=\s|$)')
_EXTENT = re.compile(rf'\s*({_STRING}|[^\s="]+)=(\d{{1,18}})(?=\s|$)')
_FIELD = re.compile(rf'\s*(\w+)(?:=((?:{_STRING}|[^\s"])+))?(?=\s|$)')
_ITEM = re.compile(rf'((?:{_STRING}|[^",])+)(?:,|$)')

#: Fields with a number, a list of names, or no value.
_NUMBERS, _LISTS, _FLAGS = ("split_k", "stages", "raster"), ("staged", "constants"), ("interleaved", "nontemporal")
_FIELDS = ("vector", "staged", "pad", "fragment", "relaxed", *_NUMBERS, *_LISTS, *_FLAGS)
#: Remedy that errors suggest.
REMEDY = "Copy the name from `roller construct`, or str(program)."


@dataclass(frozen=True)
class ProgramName:
    """The fields of a program's name, unchecked; they mean the same as in :class:`~roller.tile.program.RProgram`.

    Parameters
    ----------
    tiles
        ``((layer, ((axis, extent), ...)), ...)`` from fastest to slowest.
    vector
        Axis and number of elements, or ``None`` for scalars.
    fragment
        Name of the matrix instruction, or ``None`` if the program has none.
    """

    kind: str
    structure: str
    tiles: tuple[tuple[str, tuple[tuple[str, int], ...]], ...]
    vector: tuple[str, int] | None = None
    staged: tuple[str, ...] = ()
    pad: tuple[tuple[str, int], ...] = ()
    interleaved: bool = False
    split_k: int = 1
    constants: tuple[str, ...] = ()
    nontemporal: bool = False
    stages: int = 1
    raster: int = 1
    fragment: str | None = None
    matrix_axes: tuple[str, ...] = ()
    relaxed: tuple[str, ...] = field(default=(), compare=False)

    @property
    def axes(self) -> tuple[str, ...]:
        """Names of the axes, in order."""
        return tuple(axis for axis, _ in self.tiles[0][1])


def format_program_name(said: ProgramName) -> str:
    """Return the name of a program, unique within its expression."""
    words = [f"{said.kind}/{said.structure}"]
    for layer, extents in said.tiles:
        words.append(f"{layer}[{' '.join(f'{_quote_name(n)}={e}' for n, e in extents)}]")
    if said.vector is not None:
        words.append(f"vector={_quote_name(said.vector[0])}:{said.vector[1]}")
    if said.staged:
        words.append(f"staged={_join_names(said.staged)}")
    if said.pad:
        words.append("pad=" + ",".join(f"{_quote_name(t)}+{n}" for t, n in said.pad))
    if said.interleaved:
        words.append("interleaved")
    if said.split_k > 1:
        words.append(f"split_k={said.split_k}")
    if said.constants:
        words.append(f"constants={_join_names(said.constants)}")
    if said.nontemporal:
        words.append("nontemporal")
    words += [f"{n}={v}" for n, v in (("stages", said.stages), ("raster", said.raster)) if v > 1]
    if said.fragment is not None:
        words.append(f"fragment={said.fragment}:{_join_names(said.matrix_axes)}")
    if said.relaxed:
        words.append(f"relaxed={_join_names(said.relaxed)}")
    return " ".join(words)


def parse_program_name(text: str) -> ProgramName:
    """Parse the name of a program.

    Examples
    --------
    >>> parse_program_name("gpu/tiled register[i=8 j=4] shared[i=64 j=64] vector=j:4 staged=A,B stages=3").stages
    3
    """
    head = _HEAD.match(text)
    if head is None:
        raise _parse_error("'gpu/STRUCTURE' or 'cpu/STRUCTURE' first", text)
    tiles: list[tuple[str, tuple[tuple[str, int], ...]]] = []
    found: dict[str, object] = {}
    at = head.end()
    while text[at:].strip():
        tile = _TILE.match(text, at)
        if tile is not None:
            tiles.append((tile[1], _parse_extents(tile[2], text[at:])))
            at = tile.end()
            continue
        word = _FIELD.match(text, at)
        if word is None or word[1] not in _FIELDS or word[1] in found:
            hint = did_you_mean(word[1], _FIELDS) if word is not None and word[1] not in _FIELDS else ""
            fields = sorted(set(_FIELDS))
            raise _parse_error(
                f"a tile 'LAYER[AXIS=EXTENT ...]' or one of the fields {fields}, each once", text[at:], hint
            )
        found[word[1]] = _parse_value(word[1], word[2], text[at:])
        at = word.end()
    if not tiles or any([a for a, _ in t] != [a for a, _ in tiles[0][1]] for _, t in tiles):
        raise _parse_error("tiles of two layers or more over the same axes in the same order", text)
    if "fragment" in found:
        found["fragment"], found["matrix_axes"] = found["fragment"]  # type: ignore[misc]
    return ProgramName(head[1], head[2], tuple(tiles), **found)  # type: ignore[arg-type]


def _parse_value(name: str, value: str | None, where: str) -> object:
    if name in _FLAGS:
        if value is not None:
            raise _parse_error(f"'{name}' without a value", where)
        return True
    if value is None:
        raise _parse_error(f"'{name}=...'", where)
    if name in _NUMBERS:
        return _parse_number(value, where)
    if name == "vector":
        axis, _, elements = value.rpartition(":")
        return _parse_name(axis, where), _parse_number(elements, where)
    if name == "pad":
        parts = (item.rpartition("+") for item in _split_list(value, where))
        return tuple((_parse_name(t, where), _parse_number(n, where)) for t, _, n in parts)
    if name == "fragment":
        fragment, _, axes = value.partition(":")
        return fragment, tuple(_parse_name(a, where) for a in _split_list(axes, where))
    return tuple(_parse_name(item, where) for item in _split_list(value, where))


def _parse_extents(text: str, where: str) -> tuple[tuple[str, int], ...]:
    found: list[tuple[str, int]] = []
    at = 0
    while text[at:].strip():
        pair = _EXTENT.match(text, at)
        if pair is None:
            raise _parse_error("'AXIS=EXTENT', an extent a whole number", where)
        found.append((_parse_name(pair[1], where), int(pair[2])))
        at = pair.end()
    return tuple(found)


def _split_list(text: str, where: str) -> list[str]:
    """Split a list at the commas outside JSON strings."""
    found, at = [], 0
    while at < len(text):
        item = _ITEM.match(text, at)
        if item is None:
            raise _parse_error("names with commas between them", where)
        found.append(item[1])
        at = item.end()
    return found


def _parse_number(text: str, where: str) -> int:
    if not re.fullmatch(r"\d{1,18}", text):
        raise _parse_error("a whole number", where)
    return int(text)


def _parse_name(text: str, where: str) -> str:
    if not text.startswith('"'):
        if not text:
            raise _parse_error("a name", where)
        return text
    try:
        return str(json.loads(text))
    except ValueError:
        raise _parse_error("a name, or a JSON string of one", where) from None


def _quote_name(name: str) -> str:
    """Return a name unchanged if it is unambiguous, otherwise as a JSON string with single quotes escaped."""
    if _PLAIN.fullmatch(name):
        return name
    return json.dumps(name).replace("'", "\\u0027")


def _join_names(names: Iterable[str]) -> str:
    return ",".join(_quote_name(n) for n in names)


def _parse_error(expected: str, got: str, hint: str = "") -> TileError:
    return TileError(f"program: expected {expected}, got {bounded(got.strip())!r}{hint or '.'} {REMEDY}")
