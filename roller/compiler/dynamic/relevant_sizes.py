"""The sizes that an expression depends on: fewer than the model's if it contains only their product."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from roller.compiler.dynamic.dynamic_size_box import SizeBox, Sizes
from roller.compiler.dynamic.symbolic_programs import SymbolicExpr, canonical_symbolic_forms
from roller.errors import RollerError
from roller.templates.common.options import ConstructOptions
from roller_runtime.core.size_formulas import Atom, Formula


@dataclass(frozen=True)
class RelevantSizes:
    """An expression in terms of the sizes that it depends on."""

    #: The user's expression, or its first canonical form if it contains products of the model's sizes.
    expression: SymbolicExpr
    forms: tuple[SymbolicExpr, ...]  #: The canonical forms
    box: SizeBox  #: Bounds of the sizes
    points: tuple[Sizes, ...]  #: Sizes at which the model was read
    formulas: Mapping[str, Formula]  #: Each size of :attr:`box` that is not derived, in terms of the model's sizes

    def at(self, sizes: Sizes) -> dict[str, int]:
        """Return the expression's sizes for given sizes of the model."""
        return self.box.with_derived_sizes({n: f.at(sizes) for n, f in self.formulas.items()})

    def widened_box(self, span: int) -> SizeBox:
        """Return the box with short ranges widened to ``span``, but not to sizes at which the expression is invalid."""
        highest = dict(self.box.high)
        for name, (low, high) in self.box.ends.items():
            for size in range(max(high, low + span), high, -1):
                if self._is_valid_at({**highest, name: size}):
                    highest[name] = size
                    break
        return SizeBox({n: (low, highest[n]) for n, (low, _) in self.box.ends.items()}, self.box.derived)

    def _is_valid_at(self, sizes: Sizes) -> bool:
        """Return whether the expression is valid at these sizes: beyond the capacity of a cache, it is not."""
        everything = self.box.with_derived_sizes(sizes)
        try:
            for expression in (self.expression, *self.forms):
                expression.at(everything)
        except RollerError:
            return False
        return True


def relevant_sizes(
    expr: SymbolicExpr, points: Sequence[Sizes], box: SizeBox, options: ConstructOptions
) -> RelevantSizes:
    """Return an expression in terms of the sizes that it depends on."""
    forms = tuple(canonical_symbolic_forms(expr, points, options))
    used = {n for e in (expr, *forms) for f in e.general.formulas for n in f.sizes}
    products = [f.product for form in forms for f in form.general.formulas]
    if forms and None not in products and _have_same_inputs(expr, forms[0], points[0]):
        groups = _sizes_grouped_by_product([p for p in products if p is not None], box)
        if groups and sum(map(len, groups)) > len(groups):
            return _group_by_products(forms, points, box, groups)
    ends, derived = _root_sizes(used, box)
    mine = SizeBox(ends or dict(box.ends), derived)
    own = tuple(mine.with_derived_sizes(p) for p in points)
    kept = tuple(SymbolicExpr(e.general) for e in (expr, *forms))
    return RelevantSizes(kept[0], kept[1:], mine, own, {n: _product_formula((n,)) for n in mine.ends})


def _group_by_products(
    forms: Sequence[SymbolicExpr], points: Sequence[Sizes], box: SizeBox, groups: Sequence[tuple[str, ...]]
) -> RelevantSizes:
    formulas: dict[str, Formula] = {}
    for g in groups:
        name = "_".join(g)
        while name in formulas or (len(g) > 1 and name in (*box.ends, *box.derived)):
            name += "_"
        formulas[name] = _product_formula(g)
    ends, derived = _root_sizes({g[0] for g in groups if len(g) == 1}, box)
    ends |= {n: (f.at(box.low), f.at(box.high)) for n, f in formulas.items() if n not in (*ends, *derived)}
    mine = SizeBox({n: e for n, e in ends.items() if e[0] < e[1]}, derived)
    formulas |= {n: _product_formula((n,)) for n in mine.ends if n not in formulas}
    own = tuple(mine.with_derived_sizes({n: formulas[n].at(p) for n in mine.ends}) for p in points)
    few = tuple(SymbolicExpr.of([form.at(p) for p in points], own) for form in forms)
    return RelevantSizes(few[0], few, mine, own, {n: formulas[n] for n in mine.ends})


def _product_formula(names: tuple[str, ...]) -> Formula:
    return Formula(0, ((1, (Atom(names),)),))


def _sizes_grouped_by_product(products: Sequence[tuple[str, ...]], box: SizeBox) -> list[tuple[str, ...]]:
    """Return the sizes that occur in products, grouped if they always occur together."""
    names = sorted({n for p in products for n in p})
    found: dict[tuple[int, ...], list[str]] = {}
    for name in names:
        found.setdefault(tuple(p.count(name) for p in products), []).append(name)
    groups = [tuple(g) for g in found.values()]
    roots = [{_derivation_chain(n, box)[0] for n in g} for g in groups]
    for n, g in enumerate(groups):  # a size that determines another one forms its own group
        others = set().union(*(r for m, r in enumerate(roots) if m != n))
        if len(g) > 1 and (roots[n] & others or len(roots[n]) < len(g)):
            return []
    return groups


def _derivation_chain(name: str, box: SizeBox) -> list[str]:
    """Return the root size of a length, the intermediate lengths, and the length itself."""
    chain = [name]
    while chain[0] in box.derived:
        (before,) = box.derived[chain[0]].sizes
        chain.insert(0, before)
    return chain


def _root_sizes(used: set[str], box: SizeBox) -> tuple[dict[str, tuple[int, int]], dict[str, Formula]]:
    """Return the bounds of the root sizes of an expression's lengths, and the formulas of the derived lengths."""
    # A root with a single dependent length is replaced by that length.
    chains: dict[str, list[list[str]]] = {}
    for name in (*box.ends, *box.derived):
        if name in used:
            chain = _derivation_chain(name, box)
            chains.setdefault(chain[0], []).append(chain)
    ends, derived = {}, set[str]()
    low, high = box.low, box.high
    for several in chains.values():
        common = 0
        while all(len(c) > common + 1 and c[common + 1] == several[0][common + 1] for c in several):
            common += 1
        first = several[0][common]
        ends[first] = low[first], high[first]
        derived |= {n for c in several for n in c[common + 1 :]}
    kept = {n: e for n, e in ends.items() if e[0] < e[1]} or ends
    return kept, {n: f for n, f in box.derived.items() if n in derived}


def _have_same_inputs(expr: SymbolicExpr, form: SymbolicExpr, sizes: Sizes) -> bool:
    one, other = expr.at(sizes), form.at(sizes)
    return [t.name for t in one.inputs] == [t.name for t in other.inputs] and one.outputs == other.outputs
