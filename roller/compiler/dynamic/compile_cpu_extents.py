"""Compiles a dynamic operator for this CPU to a few kernels, chosen by timing at some sizes."""

from __future__ import annotations

import math

from roller.compiler.dynamic.build_search_request import build_search_request
from roller.compiler.dynamic.dynamic_axes import DynamicAxes
from roller.compiler.dynamic.symbolic_call import SymbolicRange
from roller.compiler.dynamic.symbolic_search import (
    MOST,
    SearchEffort,
    build_and_check,
    choose_kernels,
    construct_and_price_all,
)
from roller.hardware import DeviceSpec
from roller.templates.common.options import ConstructOptions

#: Effort for a single operator.
EFFORT = SearchEffort(each=6, cover=MOST - 1, built=10, enough=MOST - 2, budget_s=0.015, patience_s=0.2, timed_at=32,
                longest_s=math.inf, exact=True, worth=0.0005)  # fmt: skip


def compile_extents(
    varies: DynamicAxes, spec: DeviceSpec, options: ConstructOptions, seed: int = 0, timed: bool = True
) -> SymbolicRange:
    """Compile an expression for all extents of some axes on this machine's CPU."""
    question = build_search_request(varies, options)
    searches = construct_and_price_all({"": question}, spec, options, EFFORT)
    build_and_check(searches, spec, EFFORT, seed, timed)
    (s,) = searches.values()
    priced, doubt = choose_kernels(s, spec, EFFORT, seed, timed)
    return SymbolicRange(varies, question.own.expression, priced, s.best, spec, doubt)
