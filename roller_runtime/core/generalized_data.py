"""Nested data whose numbers may be functions of sizes, and their JSON form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from roller_runtime.core.size_formulas import Formula, Inverse


@dataclass(frozen=True)
class GeneralizedData:
    """Nested dictionaries, lists and leaves; size-dependent numbers are ``Formula`` or ``Inverse`` objects."""

    data: Any

    def at(self, sizes: Mapping[str, int]) -> Any:
        """Return the data for the given sizes.

        >>> from roller_runtime.core.size_formulas import Atom
        >>> GeneralizedData({"n": Formula(0, ((2, (Atom(("s",)),)),))}).at({"s": 7})
        {'n': 14}
        """
        known: dict[Formula | Inverse, float] = {}

        def at(node: Any) -> Any:
            if isinstance(node, (Formula, Inverse)):
                found = known.get(node)
                if found is None:
                    found = known[node] = node.at(sizes)
                return found
            if isinstance(node, SizeIndependent):
                return node.data
            if isinstance(node, dict):
                return {k: at(v) for k, v in node.items()}
            if isinstance(node, list):
                return [at(v) for v in node]
            return node

        return at(self.data)

    @property
    def formulas(self) -> tuple[Formula, ...]:
        """All distinct formulas in the data, in order of appearance."""
        found: dict[Formula, None] = {}

        def collect_formulas(node: Any) -> None:
            if isinstance(node, (Formula, Inverse)):
                found.setdefault(node if isinstance(node, Formula) else node.formula)
            for part in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
                collect_formulas(part)

        collect_formulas(self.data)
        return tuple(found)

    def to_json(self) -> dict[str, Any]:
        """Return JSON data: the formulas, and the structure, in which ``{"": n}`` stands for formula ``n``."""
        numbers: dict[Formula | Inverse, int] = {}

        def write(node: Any) -> Any:
            if isinstance(node, (Formula, Inverse)):
                return {"": numbers.setdefault(node, len(numbers))}
            if isinstance(node, SizeIndependent):
                return write(node.data)
            if isinstance(node, dict):
                items = {k: write(v) for k, v in node.items()}
                return {"": items} if "" in items else items
            return [write(v) for v in node] if isinstance(node, (list, tuple)) else node

        data = write(self.data)
        rows = [["1/n", f.formula.to_list()] if isinstance(f, Inverse) else ["n", f.to_list()] for f in numbers]
        return {"formulas": rows, "data": data}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> GeneralizedData:
        """Rebuild from :meth:`to_json` data; raise ``LookupError``, ``TypeError`` or ``ValueError`` if malformed.

        >>> GeneralizedData.from_json(GeneralizedData({"": [1, "a"]}).to_json()).at({})
        {'': [1, 'a']}
        """
        formulas = [_formula_from_json(row) for row in found["formulas"]]

        def read(node: Any) -> tuple[Any, bool]:
            """Return the node, and whether it contains a formula."""
            if isinstance(node, dict):
                inner = node.get("") if len(node) == 1 else None
                if type(inner) is int:
                    return formulas[inner], True
                items = inner if isinstance(inner, dict) else node
                read_items = {k: read(v) for k, v in items.items()}
                varies = any(v for _, v in read_items.values())
                return {k: (v if x or not varies else _fixed(v)) for k, (v, x) in read_items.items()}, varies
            if isinstance(node, list):
                several = [read(v) for v in node]
                varies = any(v for _, v in several)
                return [v if x or not varies else _fixed(v) for v, x in several], varies
            return node, False

        data, varies = read(found["data"])
        return cls(data if varies else _fixed(data))


def _fixed(node: Any) -> Any:
    return SizeIndependent(node) if isinstance(node, (dict, list)) else node


def _formula_from_json(row: Any) -> Formula | Inverse:
    kind, data = row
    if kind not in ("n", "1/n"):
        raise ValueError(f"formula {row!r}")
    formula = Formula.from_list(data)
    return formula if kind == "n" else Inverse(formula)


@dataclass(frozen=True)
class SizeIndependent:
    """A branch that does not depend on any size and is returned unchanged."""

    data: Any
