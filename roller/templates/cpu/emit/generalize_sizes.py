"""Derives one function for all sizes from the functions for a few sizes: constants become formulas in the sizes.

Functions of one template with the same tiles differ only in constants. Their least general generalization (G. D.
Plotkin, "A note on inductive generalization", Machine Intelligence 5, 1970) takes the sizes as arguments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from roller.core.formula_fitting import FormulaFitter
from roller.errors import BuildError
from roller.te.compat import tvm_ffi
from roller.templates.cpu.emit.build_library import ENTRY, module_of_functions
from roller.templates.cpu.emit.tir_loop_constructors import declare_buffer
from roller.templates.emit.separated_tir_numbers import (
    TirText,
    number_values_by_position,
    separate_numbers,
    substitute_formulas,
)

__all__ = [
    "TirText",
    "generalize_modules",
    "number_values_by_position",
    "packing_functions_are_equal",
    "size_argument_name",
    "module_as_tir_text",
]


def size_argument_name(name: str) -> str:
    """Return the name of the argument whose extent is a size: an array of bytes that is never read."""
    return f"{name}.size"


def module_as_tir_text(module: Any, sizes: Mapping[str, int]) -> TirText:
    """Return the parameters and body of a module's function as data, for a shape with these sizes."""
    function = module[ENTRY]
    arguments = [declare_buffer(size_argument_name(n), [x], "uint8", private=False) for n, x in sizes.items()]
    return separate_numbers([*function.params, *arguments, function.body])


def generalize_modules(texts: Sequence[TirText], fitter: FormulaFitter) -> Any:
    """Return the module for all sizes; its parameters are those of the texts, then an array of each size's extent."""
    first = texts[0]
    if any(t.shape != first.shape for t in texts):
        raise BuildError("a kernel of a range: expected the same code for all sizes, got another one for some.")
    formulas = []
    for values in number_values_by_position(texts):
        formula = fitter.fit(values)
        if formula is None:
            points = ", ".join(f"{v} at {p}" for v, p in zip(values[:4], fitter.points, strict=False))
            raise BuildError(f"a kernel of a range: a number is no known function of the sizes: {points}.")
        formulas.append(formula)
    *params, body = substitute_formulas(first, formulas)
    return module_of_functions({ENTRY: (params, body)})


def packing_functions_are_equal(modules: Sequence[Any], name: str) -> bool:
    """Return whether all modules prepare constants in the same way, or none does."""
    held = [name in {v.name_hint for v in m.functions} for m in modules]
    if not any(held):
        return True
    return all(held) and all(tvm_ffi.structural_equal(modules[0][name], m[name]) for m in modules[1:])
