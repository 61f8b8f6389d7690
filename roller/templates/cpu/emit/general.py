"""One function for all sizes from the functions of some: their numbers become formulas of the sizes.

A template writes its loops for numbers. Written for several shapes with the same tiles, two texts differ in nothing but
numbers, and each of these is a function of the sizes (:mod:`roller.core.formulas`). With the functions in their place
one text remains, their least general generalisation (G. D. Plotkin, "A note on inductive generalization", Machine
Intelligence 5, 1970), which takes the sizes when it is called. This holds for every template, and none knows of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from roller.core.fitting import Fitter
from roller.errors import BuildError
from roller.te.compat import tvm_ffi
from roller.templates.cpu.emit.library import ENTRY, prim_funcs
from roller.templates.cpu.emit.nest import declare
from roller.templates.emit.written import Written, numbers_of, rewritten, written_of

__all__ = ["Written", "generalised", "numbers_of", "same_pack", "size_argument", "written"]


def size_argument(name: str) -> str:
    """Return the argument whose extent is a size: an array of bytes that nobody reads."""
    return f"{name}.size"


def written(module: Any, sizes: Mapping[str, int]) -> Written:
    """Return what a module does as data, for a shape with these sizes: parameters and body of its function."""
    function = module[ENTRY]
    arguments = [declare(size_argument(n), [x], "uint8", private=False) for n, x in sizes.items()]
    return written_of([*function.params, *arguments, function.body])


def generalised(texts: Sequence[Written], fitter: Fitter) -> Any:
    """Return the module of all sizes: parameters of the texts, then one array for each size, whose extent it is."""
    first = texts[0]
    if any(t.shape != first.shape for t in texts):
        raise BuildError("a kernel of a range: expected the same code for all sizes, got another one for some.")
    formulas = []
    for values in numbers_of(texts):
        formula = fitter.fit(values)
        if formula is None:
            points = ", ".join(f"{v} at {p}" for v, p in zip(values[:4], fitter.points, strict=False))
            raise BuildError(f"a kernel of a range: a number is no known function of the sizes: {points}.")
        formulas.append(formula)
    *params, body = rewritten(first, formulas)
    return prim_funcs({ENTRY: (params, body)})


def same_pack(modules: Sequence[Any], name: str) -> bool:
    """Whether modules prepare constants alike, or none does."""
    held = [name in {v.name_hint for v in m.functions} for m in modules]
    if not any(held):
        return True
    return all(held) and all(tvm_ffi.structural_equal(modules[0][name], m[name]) for m in modules[1:])
