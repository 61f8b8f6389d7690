"""Memory planning: assigns a place to every value of a program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from roller.models.graph.arena_packing import pack_buffers
from roller.models.graph.lifetimes import Lifetime, root_lifetimes
from roller.models.graph.memory_aliases import ResolvedProgram, resolve_aliases
from roller_runtime.core.gc_pause import gc_paused
from roller_runtime.plan.execution_plan import ARENA, CONSTANT, INPUT, OUTPUT, Place, Plan
from roller_runtime.plan.program_steps import Program


@gc_paused()
def plan_memory(
    program: Program, *, predicted_s: Mapping[str, float] | None = None, value_align_bytes: int = 1,
    within: Plan | None = None,
) -> Plan:  # fmt: skip
    """Assign a place to every value; if ``within`` (a plan for larger values) is given, its offsets are kept."""
    # Inputs and outputs use the caller's arrays, views are free, and sources of a contiguous join are computed in
    # place.
    resolved = resolve_aliases(program, value_align_bytes)
    lives = _arena_lifetimes(resolved)
    if within is None:
        offsets, total = pack_buffers(tuple(lives.values()), [resolved.program.values[name].nbytes for name in lives])
    else:
        offsets, total = [within.places[name].offset_bytes for name in lives], within.arena_bytes
    places = {name: Place(ARENA, offset_bytes=offset) for name, offset in zip(lives, offsets, strict=True)}
    places |= {name: Place(INPUT, n) for n, name in enumerate(program.inputs)}
    places |= {name: Place(CONSTANT, name=name) for name in program.constants}
    for number, name in resolved.outputs.items():
        places[resolved.aliases.root(name)[0]] = Place(OUTPUT, number)
    places |= {name: Place(OUTPUT, n) for n, name in enumerate(program.outputs) if name in program.loose}
    for name in resolved.aliases.parents:
        root, offset = resolved.aliases.root(name)
        if root in places:
            places[name] = replace(places[root], offset_bytes=places[root].offset_bytes + offset)
    return Plan(resolved.program, places, total, dict(predicted_s or {}))


def _arena_lifetimes(resolved: ResolvedProgram) -> dict[str, Lifetime]:
    """Return the lifetimes of memory that belongs neither to the caller nor to constants."""
    aliases = resolved.aliases
    outside = {aliases.root(name)[0] for name in resolved.outputs.values()}
    lives = root_lifetimes(resolved.program, lambda name: aliases.root(name)[0])
    return {name: life for name, life in lives.items() if name not in outside}
