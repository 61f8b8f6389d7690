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
    points = tuple(p for p in varies.generalisation_sizes if _has_expression_at(varies, p))
    expr = SymbolicExpr.of([varies.at(p) for p in points], points)
    forms = tuple(canonical_symbolic_forms(expr, points, options))
    box = varies.box
    own = RelevantSizes(expr, forms, box, points, {n: Formula(0, ((1, (Atom((n,)),)),)) for n in box.ends})
    return SearchRequest(own, tuple(varies.expr.inputs[n].name for n in options.constants_of(varies.expr)))


def _has_expression_at(varies: DynamicAxes, sizes: Sizes) -> bool:
    try:
        varies.at(sizes)
    except ExprError:
        return False
    return True
