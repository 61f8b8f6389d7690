"""TIR statements as data with separate numbers, so that the numbers can be replaced by formulas in the sizes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from roller.errors import BuildError
from roller.te.compat import tvm
from roller_runtime.core.size_formulas import Atom, Formula, Inverse

#: Node fields that hold numbers directly; all other integers in a node are positions of earlier nodes.
_NUMBERS = {("tirx.For", "kind"), ("tirx.BufferType", "data_alignment"), ("tirx.BufferType", "offset_factor")}
#: Kinds of loops whose extent must be constant: vectorized and unrolled ones.
_COUNTLESS = (2, 3)
#: The dtype of sizes. A formula is cast if the number it replaces has a different dtype, such as that of an index
#: returned as a result.
_SIZE = "int32"
_INTEGER, _FLOAT, _BOXED, _MIN = "ir.IntImm", "ir.FloatImm", "int", "prim.Min"


@dataclass(frozen=True)
class TirText:
    """Parameters and a statement as data, with their numbers stored separately.

    Parameters
    ----------
    nodes
        Nodes of TVM's JSON; a node refers to earlier nodes by position.
    numbers
        For each number, the position of its node in ``nodes``, and the number itself.
    shape
        Everything but the numbers, as text: equal for statements that differ only in numbers.
    last_starts
        Positions in ``numbers`` of the operands of a ``min``: the last position at which a tile may start. A negative
        one means that the tile is longer than its axis.
    """

    nodes: tuple[dict[str, Any], ...]
    numbers: tuple[tuple[int, int], ...]
    shape: str
    last_starts: tuple[int, ...] = ()

    @property
    def digest(self) -> str:
        """Hash of :attr:`shape`, for storage."""
        return hashlib.sha256(self.shape.encode()).hexdigest()


def separate_numbers(several: Sequence[Any], *, kept: bool = False) -> TirText:
    """Return variables, then a statement, as data; with ``kept``, numbers that code must know remain in the text."""
    data = json.loads(tvm.ir.save_json(tvm.runtime.convert(list(several))))
    nodes, new = list[dict[str, Any]](), dict[int, int]()
    numbers = []
    given = data["nodes"]
    literal = _numbers_code_must_know(given) if kept else frozenset[int]()
    for n, node in enumerate(given):
        if node["type"] == _BOXED:  # equal numbers share a node, and the text must not reveal that
            continue
        new[n] = len(nodes)
        if node["type"] == _INTEGER:
            fields = node["data"]
            if n in literal:
                node = {"type": _INTEGER, "data": {k: new[fields[k]] for k in ("span", "ty")}}
                node["data"]["value"] = {"number": given[fields["value"]]["data"]}
                nodes.append(node)
                continue
            numbers.append((len(nodes), int(given[fields["value"]]["data"])))
            nodes.append({"type": _INTEGER, "data": {"span": new[fields["span"]], "ty": new[fields["ty"]]}})
            continue
        below = Inverse.of(node["data"]["value"]) if node["type"] == _FLOAT else None
        if below is not None:  # the reciprocal of a number, as in a mean: that number may depend on sizes
            numbers.append((len(nodes), below))
            node = {"type": _FLOAT, "data": {**node["data"], "value": "inverse"}}
        nodes.append(_renumber_node(node, new, given))
    if data["root_index"] != len(given) - 1:
        raise BuildError("a kernel of a range: expected the last node to be the root.")
    operands = {n["data"][k] for n in nodes if n["type"] == _MIN for k in ("a", "b")}
    last_starts = tuple(k for k, (at, _) in enumerate(numbers) if at in operands)
    return TirText(tuple(nodes), tuple(numbers), json.dumps(nodes), last_starts)


def _numbers_code_must_know(given: Sequence[dict[str, Any]]) -> frozenset[int]:
    """Return the nodes of numbers that code must know: threads, buffer sizes, and vectorized or unrolled extents."""
    found: set[int] = set()
    for node in given:
        data: Any = node.get("data")
        if node["type"] == "tirx.For" and data["kind"] in _COUNTLESS:
            found.add(data["extent"])
        elif node["type"] == "tirx.IterVar" and str(given[data["thread_tag"]].get("data")).startswith("threadIdx"):
            found.add(given[data["dom"]]["data"]["extent"])
        elif node["type"] == "tirx.AllocBuffer":
            kind = given[given[data["buffer"]]["data"]["ty"]]["data"]
            found.update(given[kind["shape"]]["data"])
    return frozenset(found)


def _renumber_node(node: dict[str, Any], new: Mapping[int, int], given: Sequence[Any]) -> dict[str, Any]:
    def at(value: Any) -> Any:
        return new[value] if value in new else {"number": given[value]["data"]}

    data = node.get("data")
    if isinstance(data, list):
        return {**node, "data": [at(x) for x in data]}
    if not isinstance(data, dict):
        return node
    kept = {
        k: v if not isinstance(v, int) or isinstance(v, bool) or (node["type"], k) in _NUMBERS else at(v)
        for k, v in data.items()
    }
    return {**node, "data": kept}


def number_values_by_position(texts: Sequence[TirText]) -> list[tuple[int, ...]]:
    """Return, for each position of a number in statements of equal shape, the values there in all of the statements."""
    return list(zip(*([number for _, number in t.numbers] for t in texts), strict=True))


def substitute_formulas(text: TirText, formulas: Sequence[Formula], sizes: Sequence[str] | None = None) -> list[Any]:
    """Return a text's variables and statement with formulas for numbers, then the variables of ``sizes``."""
    writer = _NodeWriter([json.loads(json.dumps(n)) for n in text.nodes])
    for (at, _), formula in zip(text.numbers, formulas, strict=True):
        writer.put(at, formula)
    root = writer.place[len(text.nodes) - 1]
    if sizes is not None:
        last = writer.variables(sizes)
        writer.out[root]["data"].append(root)  # swapped, since a node comes after the nodes it refers to
        writer.out[last], writer.out[root] = writer.out[root], writer.out[last]
        root = last
    data = json.dumps({"root_index": root, "nodes": writer.out, "metadata": {}})
    return list(tvm.ir.load_json(data))


def _is_type_node(node: Mapping[str, Any], dtype: str) -> bool:
    return bool(node["type"] == "ir.PrimType" and node["data"].get("dtype") == dtype)


class _NodeWriter:
    """Rewrites nodes with formulas in place of numbers."""

    def __init__(self, nodes: list[dict[str, Any]]) -> None:
        self.nodes, self.formulas = nodes, dict[int, Formula]()
        self.out: list[dict[str, Any]] = []
        self._place: dict[int, int] | None = None
        self._boxed: dict[int, int] = {}
        self._vars: dict[tuple[str, int], int] = {}

    def put(self, at: int, formula: Formula) -> None:
        self.formulas[at] = formula

    @property
    def place(self) -> dict[int, int]:
        """New position of each node."""
        if self._place is None:
            self._place = {}
            for n, node in enumerate(self.nodes):
                self._place[n] = self._write(n, node, self._place)
        return self._place

    def _add_node(self, kind: str, data: Any) -> int:
        self.out.append({"type": kind, "data": data} if data is not None else {"type": kind})
        return len(self.out) - 1

    def _write(self, n: int, node: dict[str, Any], place: Mapping[int, int]) -> int:
        if node["type"] == _INTEGER and n in self.formulas:
            formula, (span, ty) = self.formulas[n], (place[node["data"][k]] for k in ("span", "ty"))
            if not formula.terms or _is_type_node(self.nodes[node["data"]["ty"]], _SIZE):
                return self._write_formula(formula, span, ty)
            made = self._write_formula(formula, span, self._size_type_position(place))
            return self._add_node("prim.Cast", {"span": span, "ty": ty, "value": made})
        data = node.get("data")
        if n in self.formulas and isinstance(data, dict):
            return self._write_reciprocal(
                self.formulas[n], place[data["span"]], place[data["ty"]], self._size_type_position(place)
            )
        if isinstance(data, list):
            return self._add_node(node["type"], [self._position_or_boxed_number(x, place) for x in data])
        if not isinstance(data, dict):
            return self._add_node(node["type"], data)
        return self._add_node(
            node["type"],
            {
                k: v
                if isinstance(v, (str, bool, float)) or (node["type"], k) in _NUMBERS
                else self._position_or_boxed_number(v, place)
                for k, v in data.items()
            },
        )

    def _size_type_position(self, place: Mapping[int, int]) -> int:
        """Return the new position of the node for the type of sizes."""
        return next(at for m, at in place.items() if _is_type_node(self.nodes[m], _SIZE))

    def _position_or_boxed_number(self, value: Any, place: Mapping[int, int]) -> int:
        return self._write_boxed_number(value["number"]) if isinstance(value, dict) else place[value]

    def _write_boxed_number(self, number: int) -> int:
        if number not in self._boxed:
            self._boxed[number] = self._add_node(_BOXED, number)
        return self._boxed[number]

    def _write_number(self, value: int, span: int, ty: int) -> int:
        return self._add_node(_INTEGER, {"span": span, "ty": ty, "value": self._write_boxed_number(value)})

    def _write_binary(self, op: str, a: int, b: int, span: int, ty: int) -> int:
        return self._add_node(f"prim.{op}", {"span": span, "ty": ty, "a": a, "b": b})

    def _size_variable(self, name: str, span: int, ty: int) -> int:
        key = name, ty
        if key not in self._vars:
            text = self._add_node("ffi.String", name)
            self._vars[key] = self._add_node("ir.Var", {"span": span, "ty": ty, "name": text})
        return self._vars[key]

    def variables(self, sizes: Sequence[str]) -> int:
        """Write an array of the variables of ``sizes`` and return its position."""
        found: dict[str, list[int]] = {n: [at for (name, _), at in self._vars.items() if name == n] for n in sizes}
        wrong = [n for n, several in found.items() if len(several) != 1]
        if wrong:
            raise BuildError(f"a kernel of a range: expected numbers of one type, '{wrong[0]}' has several.")
        return self._add_node("ffi.Array", [found[n][0] for n in sizes])

    def _write_atom(self, atom: Atom, span: int, ty: int) -> int:
        found = self._size_variable(atom.sizes[0], span, ty)
        for name in atom.sizes[1:]:
            found = self._write_binary("Mul", found, self._size_variable(name, span, ty), span, ty)
        if atom.factor != 1:
            found = self._write_binary("Mul", found, self._write_number(atom.factor, span, ty), span, ty)
        if atom.how == "*":
            return found
        if atom.how in ("ceil", "share"):
            found = self._write_binary("Add", found, self._write_number(atom.by - 1, span, ty), span, ty)
        if atom.how == "share":
            count = self._write_binary("FloorDiv", found, self._write_number(atom.by, span, ty), span, ty)
            more = self._write_binary("Add", count, self._write_number(atom.whole - 1, span, ty), span, ty)
            return self._write_binary("FloorDiv", more, count, span, ty)
        how = "FloorMod" if atom.how == "mod" else "FloorDiv"
        return self._write_binary(how, found, self._write_number(atom.by, span, ty), span, ty)

    def _write_reciprocal(self, formula: Formula, span: int, ty: int, whole: int) -> int:
        """Write the reciprocal of a formula: a division in double precision, rounded like a constant."""
        if not formula.terms:
            return self._add_node(_FLOAT, {"span": span, "ty": ty, "value": 1 / formula.const})
        double = self._add_node("ir.PrimType", {"span": span, "dtype": "float64"})
        number = self._add_node(
            "prim.Cast", {"span": span, "ty": double, "value": self._write_formula(formula, span, whole)}
        )
        one = self._add_node(_FLOAT, {"span": span, "ty": double, "value": 1.0})
        return self._add_node(
            "prim.Cast", {"span": span, "ty": ty, "value": self._write_binary("Div", one, number, span, double)}
        )

    def _write_formula(self, formula: Formula, span: int, ty: int) -> int:
        total: int | None = None
        for factor, atoms in formula.terms:
            term = self._write_atom(atoms[0], span, ty)
            for atom in atoms[1:]:
                term = self._write_binary("Mul", term, self._write_atom(atom, span, ty), span, ty)
            if factor != 1:
                term = self._write_binary("Mul", term, self._write_number(factor, span, ty), span, ty)
            total = term if total is None else self._write_binary("Add", total, term, span, ty)
        if total is None:
            return self._write_number(formula.const, span, ty)
        if formula.const:
            total = self._write_binary("Add", total, self._write_number(formula.const, span, ty), span, ty)
        return total
