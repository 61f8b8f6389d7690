"""Builds the explanation of a program from its construction, predicted time, limits and rivals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from roller import perf
from roller.construction.constructor import construct_candidates, spec_of_device_share
from roller.construction.parse_program_names import estimate_named_program
from roller.errors import NoCandidateError
from roller.explanation import explanation_sections as part
from roller.explanation import spec_change_effects
from roller.explanation.price_comparison import dominant_terms, format_quantity
from roller.explanation.program_facts import LayerUse, ProgramFact, layer_uses, utilization_facts
from roller.explanation.reconstruct_construction_steps import ConstructionHistory, reconstruct_construction
from roller.explanation.render_sections import ExplanationSection, alignment_rule_text, render_html, render_text
from roller.explanation.roofline import Roofline, roofline
from roller.explanation.why_not import WhyNot, compare_with_chosen
from roller.explanation.why_not_larger import EnlargementStop, stops
from roller.expr import TensorExpr
from roller.hardware import DeviceSpec
from roller.perf import Estimate, Term
from roller.perf.matrix_unit_notes import notes_on_matrix_unit
from roller.templates import price_with_templates
from roller.templates.common.options import ConstructOptions
from roller.tile.program import RProgram

#: Maximum number of device fields to list, and of rival candidates.
_LIFTS, _RIVALS = 5, 3


@dataclass(frozen=True)
class Explanation:
    """Explanation of a program's construction and predicted time; :func:`roller.explain` returns one.

    Parameters
    ----------
    expression, device, description
        The expression, and the device's name and title.
    program, estimate
        The program and its estimate.
    rank
        Position among the constructed candidates, best first, or ``None`` if construction did not produce it.
    candidates
        Number of candidates.
    road
        The steps of construction.
    stops
        Reasons why no tile is larger.
    time
        The predicted time in seconds as a tree of terms; the terms' rules reproduce it bit for bit.
    layers, facts
        Bytes held and moved per memory layer; occupancy, waves and padding.
    roof
        Position on the device's roofline.
    limits
        Terms that dominate the time, from the total down to an input value.
    lifts
        Changes of device values that would make a newly constructed program faster, strongest effect first.
    rivals
        The next candidates, and the reasons why they are worse.
    measured_s
        Measured time of the kernel in seconds; ``None`` if it was not measured.
    notes
        Further remarks.
    bound_assumed
        Device fields of the bottleneck whose values are assumed rather than measured or taken from a data sheet.
    """

    expression: TensorExpr
    device: str
    description: str
    program: RProgram
    estimate: Estimate
    rank: int | None
    candidates: int
    road: ConstructionHistory
    stops: tuple[EnlargementStop, ...]
    time: Term
    layers: tuple[LayerUse, ...]
    facts: tuple[ProgramFact, ...]
    roof: Roofline
    limits: tuple[Term, ...]
    lifts: tuple[spec_change_effects.FieldEffect, ...]
    rivals: tuple[WhyNot, ...]
    measured_s: float | None = None
    notes: tuple[str, ...] = ()
    bound_assumed: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data with every number in full precision."""
        return {
            "expression": str(self.expression), "device": self.device, "program": str(self.program),
            "rank": self.rank, "candidates": self.candidates, "predicted_s": self.estimate.seconds,
            "expected_error": self.estimate.expected_error, "measured_s": self.measured_s,
            "bottleneck": self.estimate.bottleneck, "bound_assumed": list(self.bound_assumed),
            "steps": [s.to_dict() for s in self.road.steps],
            "construction": list(self.road.words), "stops": [s.to_dict() for s in self.stops],
            "time": self.time.to_dict(), "rules": dict(perf.RULES), "layers": [x.to_dict() for x in self.layers],
            "facts": [f.to_dict() for f in self.facts], "roofline": self.roof.to_dict(),
            "limits": [{"name": t.name, "value": t.value, "unit": t.unit} for t in self.limits],
            "lifts": [_improvement_to_dict(e) for e in self.lifts], "rivals": [r.to_dict() for r in self.rivals],
            "relaxed": list(self.program.relaxed), "notes": list(self.notes),
        }  # fmt: skip

    def __str__(self) -> str:
        return render_text(ordered_sections(self))

    def __repr__(self) -> str:
        return f"<Explanation of {self.expression.name} on {self.device}: {self.estimate}>"

    def _repr_html_(self) -> str:
        return render_html(ordered_sections(self))


def ordered_sections(e: Explanation) -> tuple[ExplanationSection, ...]:
    """Return the sections of an explanation in order."""
    found = (
        _program_and_device_section(e), part.construction_section(e.road), part.enlargement_stops_section(e.stops),
        part.time_section(e.time),
        part.layers_section(e.layers), part.occupancy_section(e.facts), part.roofline_section(e.roof),
        part.dominant_terms_section(e.limits, e.lifts), part.next_candidates_section(e.rivals),
    )  # fmt: skip
    return tuple(s for s in found if s.sentences or s.rows)


def _program_and_device_section(e: Explanation) -> ExplanationSection:
    place = f"number {e.rank} of {e.candidates} candidates" if e.rank else "not among the constructed candidates"
    measured = f" Measured {format_quantity(e.measured_s, 's')}." if e.measured_s is not None else ""
    bound = e.estimate.bottleneck + "".join(f" (its {field} is assumed, not measured)" for field in e.bound_assumed)
    predicted = f"Predicted {format_quantity(e.estimate.seconds, 's')}{e.estimate.spread}, bound by {bound}.{measured}"
    relaxed = [f"It relaxes {alignment_rule_text(r)}" for r in e.program.relaxed]
    priced = [] if e.program.emitted else [_not_emitted_sentence(e.program)]
    sentences = (f"{e.program} ({place})", predicted, *priced, *relaxed, *e.notes)
    return ExplanationSection(f"{e.expression} on {e.description}", sentences)


def _not_emitted_sentence(program: RProgram) -> str:
    assert program.fragment is not None
    return (
        f"It is priced alone: no template has code for '{program.fragment.name}'. `compile` makes a kernel without the "
        "matrix unit; construct for `spec.emitted` to see its price."
    )


def _improvement_to_dict(effect: spec_change_effects.FieldEffect) -> dict[str, Any]:
    best = effect.best
    assert best is not None  # by _lifts
    return {"field": effect.field, "value": effect.value, "unit": effect.unit, "assumed": effect.assumed,
            "to": best.value, "predicted_s": best.seconds[0], "percent": best.percent}  # fmt: skip


def explain_program(
    expr: TensorExpr,
    spec: DeviceSpec,
    options: ConstructOptions,
    program: RProgram | None = None,
    measured_s: float | None = None,
) -> Explanation:
    """Return the explanation of ``program``, or of the first constructed candidate if it is ``None``."""
    target = spec_of_device_share(spec, options)
    found = _construct_candidates_if_any(expr, spec, options, needed=program is None)
    chosen = found[0].program if program is None else program
    alike = next((n for n, c in enumerate(found) if c.program == chosen), None)
    rank = None if alike is None else alike + 1
    estimate_named_program(chosen, target)  # raises with the exceeded capacity
    estimate, time = price_with_templates.estimate_with_terms(chosen, target)
    others = [c.program for c in found if c.program != chosen][:_RIVALS]
    roof = roofline(expr, chosen, target, estimate.seconds)
    return Explanation(
        expr, spec.name, spec.title, chosen, estimate, rank, len(found), reconstruct_construction(chosen, target,
                                                                                                  options),
        stops(chosen, target, options, time), time, layer_uses(chosen, target, estimate),
        utilization_facts(chosen, target, estimate), roof, dominant_terms(time),
        _strongest_improvements(expr, spec, options, chosen), tuple(compare_with_chosen(expr, target, chosen,
                                                                                 p) for p in others), measured_s,
        bound_assumed=_assumed_numbers_of_bottleneck(estimate.bottleneck, roof.pipe, spec),
        notes=notes_on_matrix_unit([expr],
                                                                                                          target),
    )  # fmt: skip


def _assumed_numbers_of_bottleneck(bottleneck: str, pipe: str, spec: DeviceSpec) -> tuple[str, ...]:
    layer = spec.home.name if bottleneck == "dram" else bottleneck
    rate = pipe if bottleneck == "compute" else ""
    fields = (f"memory_layers.{layer}.bandwidth_bytes_per_s", f"compute.ops_per_cycle_per_unit.{rate}")
    return tuple(f for f in fields if spec.sources.get(f) == "assumed")


def _construct_candidates_if_any(
    expr: TensorExpr, spec: DeviceSpec, options: ConstructOptions, needed: bool
) -> tuple[Any, ...]:
    try:
        return construct_candidates(expr, spec, options)
    except NoCandidateError:
        if needed:
            raise
        return ()


def _strongest_improvements(
    expr: TensorExpr, spec: DeviceSpec, options: ConstructOptions, program: RProgram
) -> tuple[spec_change_effects.FieldEffect, ...]:
    """Return the device fields whose improvement makes a newly constructed program faster, strongest effect first."""
    # Only the fields with the most effect on this program: construction for every field would take seconds.
    own = [
        e
        for e in spec_change_effects.effects(spec, spec_change_effects.fixed_program_pricer([program]))
        if e.best is not None
    ]
    fields = [e.field for e in sorted(own, key=lambda e: -e.weight)[:_LIFTS]]
    anew = spec_change_effects.effects(spec, spec_change_effects.reconstructing_pricer([expr], options), fields)
    gaining = [e for e in anew if e.best is not None]
    return tuple(sorted(gaining, key=lambda e: e.best.percent if e.best else 0.0))
