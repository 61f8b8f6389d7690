"""Builds the search request for a dynamic operator on a CPU or a GPU."""

from __future__ import annotations

from roller.compiler.dynamic.dynamic_axes import DynamicAxes
from roller.compiler.dynamic.dynamic_size_box import Sizes
from roller.compiler.dynamic.relevant_sizes import RelevantSizes
from roller.compiler.dynamic.symbolic_programs import SymbolicExpr, canonical_symbolic_forms
from roller.compiler.dynamic.symbolic_search import SearchRequest
from roller.errors import ExprError
from roller.templates.common.options import ConstructOptions
from roller_runtime.core.size_formulas import Atom, Formula


def build_search_request(varies: DynamicAxes, options: ConstructOptions) -> SearchRequest:
    """Return the search request for an expression over all extents of its dynamic axes."""
    points = expression_points(varies)
    expr = SymbolicExpr.of([varies.at(p) for p in points], points)
    own = sizes_of_axes(varies, expr, tuple(canonical_symbolic_forms(expr, points, options)))
    return SearchRequest(own, tuple(varies.expr.inputs[n].name for n in options.constants_of(varies.expr)))


def sizes_of_axes(varies: DynamicAxes, expr: SymbolicExpr, forms: tuple[SymbolicExpr, ...] = ()) -> RelevantSizes:
    """Return an expression in terms of its dynamic axes."""
    formulas = {n: Formula(0, ((1, (Atom((n,)),)),)) for n in varies.box.ends}
    return RelevantSizes(expr, forms, varies.box, expression_points(varies), formulas)


def expression_points(varies: DynamicAxes) -> tuple[Sizes, ...]:
    """Return the sizes at which an expression is generalized."""
    return tuple(p for p in varies.generalisation_sizes if _has_expression_at(varies, p))


def _has_expression_at(varies: DynamicAxes, sizes: Sizes) -> bool:
    try:
        varies.at(sizes)
    except ExprError:
        return False
    return True
