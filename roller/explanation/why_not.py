"""Why a different program is worse: the capacity that it exceeds, or the term that makes it slower."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from roller.construction.block_capacity_checks import with_hard_limits
from roller.construction.explicit_tiles import ProgramMechanisms, Tile, price_named_tiles
from roller.construction.parse_program_names import estimate_named_program, program_from_name
from roller.errors import TileError, bounded, shown
from roller.explanation.exceeded_budget import exceeded_budget
from roller.explanation.price_comparison import (
    TermDifference,
    difference_sentence,
    dominant_differences,
    format_quantity,
)
from roller.explanation.render_sections import ExplanationSection, alignment_rule_text, render_html
from roller.expr import TensorExpr
from roller.hardware import DeviceSpec
from roller.perf import Estimate, Term
from roller.templates import price_with_templates
from roller.tile.program import RProgram

#: Note for a program that the model prefers but construction did not try.
UNTRIED = "construction prices few values of every choice, and none of them was this one"


@dataclass(frozen=True)
class WhyNot:
    """Comparison of a named program with the chosen one, and the reason for the difference.

    Parameters
    ----------
    asked
        Name of the program, or the tiles as given.
    chosen
        Name of the reference program.
    verdict
        ``"illegal"`` (no such program, or it does not fit the device), ``"chosen"`` (the same program), ``"slower"``,
        ``"equal"`` or ``"faster"`` (by prediction, but construction did not try it or the reference was measured
        faster).
    reason
        For an illegal program, the rule or capacity in numbers; otherwise the difference from the total to its cause.
    seconds, chosen_s
        Predicted times of the program and the reference in seconds; ``None`` for an illegal program.
    road
        Terms that cause most of the difference, starting with the predicted times.
    terms
        All estimate terms in which the two programs differ.
    program
        Name of the program made from the tiles; ``None`` for an illegal one.
    relaxed
        Alignment rules that the program violates.
    budget
        Construction budget that the program exceeds although it runs, or ``None``.
    time
        Predicted time of the program as a tree of terms; ``None`` for an illegal program.
    """

    asked: str
    chosen: str
    verdict: str
    reason: str
    seconds: float | None = None
    chosen_s: float | None = None
    road: tuple[TermDifference, ...] = ()
    terms: tuple[TermDifference, ...] = ()
    program: str | None = None
    relaxed: tuple[str, ...] = ()
    budget: str | None = None
    time: Term | None = None

    @property
    def percent(self) -> float | None:
        """Predicted time in excess of the reference's, in percent; ``None`` for an illegal program."""
        if self.seconds is None or self.chosen_s is None:
            return None
        return 100 * (self.seconds / self.chosen_s - 1)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data with every number in full precision."""
        return {
            "asked": self.asked, "program": self.program, "chosen": self.chosen, "verdict": self.verdict,
            "reason": self.reason, "predicted_s": self.seconds, "chosen_s": self.chosen_s, "percent": self.percent,
            "road": [d.to_dict() for d in self.road], "terms": [d.to_dict() for d in self.terms],
            "relaxed": list(self.relaxed), "budget": self.budget,
            "time": None if self.time is None else self.time.to_dict(),
        }  # fmt: skip

    def _repr_html_(self) -> str:
        return render_html(comparison_sections(self))

    def __str__(self) -> str:
        if self.seconds is None or self.chosen_s is None:
            return f"illegal: {self.reason}"
        own, chosen = format_quantity(self.seconds, "s"), format_quantity(self.chosen_s, "s")
        return f"{self.verdict}: predicted {own} against {chosen} ({self.percent:+.2f} %)\n{self.reason}"


def comparison_sections(w: WhyNot) -> tuple[ExplanationSection, ...]:
    """Return the sections of a comparison in order."""
    sentences = [f"asked: {w.asked}", *([f"program: {w.program}"] if w.program not in (None, w.asked) else [])]
    sentences += [f"chosen: {w.chosen}", *str(w).splitlines()]
    if w.budget:
        sentences.append(f"It runs, but exceeds a budget that construction keeps to: {w.budget}.")
    sentences += [f"It relaxes {alignment_rule_text(r)}" for r in w.relaxed]
    road = tuple((d.name, format_quantity(d.own, d.unit), format_quantity(d.other, d.unit)) for d in w.road)
    terms = tuple((d.name, format_quantity(d.own, d.unit), format_quantity(d.other, d.unit)) for d in w.terms)
    found = [ExplanationSection("Why not", tuple(sentences))]
    if road:
        found.append(ExplanationSection("Down to the cause", (), ("term", "asked", "chosen"), road))
        found.append(ExplanationSection("Terms that differ", (), ("term", "asked", "chosen"), terms))
    return tuple(found)


def compare_with_chosen(
    expr: TensorExpr,
    spec: DeviceSpec,
    chosen: RProgram,
    tiles: Mapping[str, Tile] | str | RProgram,
    fragment: str | None = None,
    how: ProgramMechanisms = ProgramMechanisms(),  # noqa: B008 - frozen
    measured: bool = False,
) -> WhyNot:
    """Return the comparison of a program or tiles with the ``chosen`` program."""
    asked = _format_request(tiles, fragment, how)
    try:
        estimate, program, time = _price_named_program(expr, spec, tiles, fragment, how)
    except TileError as error:
        hint = ""
        if chosen.fragment is not None and fragment is None and isinstance(tiles, Mapping):
            hint = f" No fragment was named: the chosen program is of the matrix unit, fragment={chosen.fragment.name}."
        return WhyNot(asked, str(chosen), "illegal", f"{error}{hint}")
    own, of_chosen = price_with_templates.estimate_with_terms(chosen, spec)
    name, relaxed = str(program), program.relaxed
    if program == chosen:
        reason = "it is the program that was chosen"
        return WhyNot(asked, name, "chosen", reason, estimate.seconds, own.seconds, (), (), name, relaxed, None, time)
    road = dominant_differences(time, of_chosen)
    verdict = "slower" if estimate.seconds > own.seconds else "equal" if estimate.seconds == own.seconds else "faster"
    budget, reason = exceeded_budget(program, spec), difference_sentence(road)
    if verdict == "faster":
        came_by = "what it is held against was measured to be faster" if measured else UNTRIED
        reason = f"{reason}; {f'construction keeps to its budgets: {budget}' if budget else came_by}"
    return WhyNot(asked, str(chosen), verdict, reason, estimate.seconds, own.seconds, road,
                  _term_differences(estimate, own),
                  name, relaxed, budget, time)  # fmt: skip


def _price_named_program(
    expr: TensorExpr,
    spec: DeviceSpec,
    tiles: Mapping[str, Tile] | str | RProgram,
    fragment: str | None,
    how: ProgramMechanisms,
) -> tuple[Estimate, RProgram, Term]:
    """Return the estimate, the program and the terms for a program's name or for tiles."""
    if isinstance(tiles, (str, RProgram)):
        program = program_from_name(expr, spec, str(tiles))
        estimate, block = estimate_named_program(program, spec), None
    else:
        found = price_named_tiles(expr, spec, tiles, fragment, how)
        estimate, program, block = found.estimate, found.program, found.block
    same, time = price_with_templates.estimate_with_terms(program, spec, block)
    if same.seconds != estimate.seconds:  # within the hard limits but above construction budgets
        _, time = price_with_templates.estimate_with_terms(program, with_hard_limits(spec), block)
    return estimate, program, time


def _term_differences(own: Estimate, other: Estimate) -> tuple[TermDifference, ...]:
    names = list(dict.fromkeys([*own.terms, *other.terms]))
    found = [TermDifference(n, own.terms.get(n, 0.0), other.terms.get(n, 0.0), _unit_of_term(n)) for n in names]
    found = [d for d in found if d.own != d.other]
    return tuple(sorted(found, key=lambda d: (d.unit != "s", -abs(d.own - d.other) if d.unit == "s" else 0.0)))


def _unit_of_term(name: str) -> str:
    return "s" if name.endswith("_s") else "bytes" if name.endswith("_bytes") else ""


def _format_request(tiles: object, fragment: str | None = None, how: ProgramMechanisms = ProgramMechanisms()) -> str:  # noqa: B008 - frozen
    """Return a program's name, or tiles and mechanisms as given, on one line of bounded length."""
    if isinstance(tiles, (str, RProgram)):
        return bounded(str(tiles))
    if not isinstance(tiles, Mapping):
        return shown(tiles)

    def format_word(x: object) -> str:
        return x if isinstance(x, str) else shown(x)

    def format_tile(tile: object) -> str:
        if isinstance(tile, Mapping):
            return ",".join(f"{format_word(a)}:{format_word(n)}" for a, n in tile.items())
        return ",".join(map(format_word, tile)) if isinstance(tile, (tuple, list)) else format_word(tile)

    said = [f"{format_word(layer)}={format_tile(tile)}" for layer, tile in tiles.items()]
    said += [f"{name}={format_word(n)}" for name, n in vars(how).items() if n != getattr(ProgramMechanisms(), name)]
    return bounded(" ".join([*said, *([f"fragment={format_word(fragment)}"] if fragment is not None else [])]))
