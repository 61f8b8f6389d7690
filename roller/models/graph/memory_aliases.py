"""Memory sharing between values: views, parts of a join, and outputs written into the caller's arrays."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from roller.errors import ModelError
from roller_runtime.plan.program_steps import (
    Append,
    Copy,
    Join,
    ParallelGroup,
    Program,
    Step,
    Value,
    View,
    values_written,
)


@dataclass
class Aliases:
    """Values that lie inside other values; ``parents`` maps each to the enclosing value and the byte offset in that."""

    values: dict[str, Value]
    parents: dict[str, tuple[str, int]] = field(default_factory=dict)

    def root(self, name: str) -> tuple[str, int]:
        """Return the value whose memory contains ``name`` (itself if it has its own), and the byte offset there.

        Examples
        --------
        >>> Aliases({}, {"c": ("b", 8), "b": ("a", 4)}).root("c")
        ('a', 12)
        """
        offset = 0
        while name in self.parents:
            name, start = self.parents[name]
            offset += start
        return name, offset

    def is_whole(self, name: str) -> bool:
        """Return whether ``name`` occupies all the memory of its root."""
        root, offset = self.root(name)
        return offset == 0 and self.values[root].nbytes == self.values[name].nbytes


@dataclass(frozen=True)
class ResolvedProgram:
    """A program whose memory is assigned except for offsets in the arena.

    Parameters
    ----------
    program
        Program without views and joins: those that move data have become copies. An output that cannot be written in
        place is copied to a value of its own.
    outputs
        Value written into the caller's array, by output index.
    """

    program: Program
    aliases: Aliases
    outputs: Mapping[int, str]


def resolve_aliases(program: Program, align_bytes: int = 1) -> ResolvedProgram:
    """Assign shared memory; a view whose offset is not a multiple of ``align_bytes`` becomes a copy."""
    aliases = Aliases(dict(program.values))
    steps = _alias_views(program.steps, aliases, align_bytes)
    written = {name for step in steps for name in values_written(step)}
    outputs, copies = _place_outputs(program, aliases, written)
    fixed = {aliases.root(name)[0] for name in outputs.values()}
    movable = {name for name in written if name not in fixed}
    steps = _place_joins(steps, aliases, movable, fixed, align_bytes)
    return ResolvedProgram(replace(program, steps=(*steps, *copies), values=aliases.values), aliases, outputs)


def _alias_views(steps: tuple[Step, ...], aliases: Aliases, align_bytes: int) -> tuple[Step, ...]:
    """Record views as aliases; misaligned views become copies."""
    kept: list[Step] = []
    for step in steps:
        if isinstance(step, ParallelGroup):
            kept.append(replace(step, lanes=tuple(_alias_views(lane, aliases, align_bytes) for lane in step.lanes)))
        elif isinstance(step, Append):
            kept.append(_append_as_copy(step, aliases))
        elif not isinstance(step, View):
            kept.append(step)
        elif (aliases.root(step.source)[1] + step.offset_bytes) % align_bytes == 0:
            aliases.parents[step.target] = (step.source, step.offset_bytes)
        else:
            kept.append(Copy(step.source, step.target, 1, aliases.values[step.target].nbytes, step.offset_bytes))
    return tuple(kept)


def _append_as_copy(step: Append, aliases: Aliases) -> Copy:
    """Place an append's target in the memory of its cache; return the copy that writes the new rows."""
    new, whole = aliases.values[step.source], aliases.values[step.target]
    inner = math.prod(whole.shape[step.axis + 1 :]) * whole.nbytes // max(1, whole.elements)
    aliases.parents[step.target] = (step.cache, 0)
    return Copy(
        step.source, step.target, math.prod(whole.shape[: step.axis]), new.shape[step.axis] * inner, 0,
        new.shape[step.axis] * inner, step.offset * inner, whole.shape[step.axis] * inner,
    )  # fmt: skip


def _place_outputs(program: Program, aliases: Aliases, written: set[str]) -> tuple[dict[int, str], list[Step]]:
    """Return the value that contains each output, and the copies for outputs not computed in place."""
    found: dict[int, str] = {}
    copies: list[Step] = []
    claimed: set[str] = set()
    known = written | set(program.inputs) | set(program.constants)
    for number, name in enumerate(program.outputs):
        root, _ = aliases.root(name)
        if root not in known:
            raise ModelError(f"{program.name}: output '{name}' is written by no step. Give it a step, or drop it.")
        if name in program.loose:
            continue  # the step that computes it allocates its own array
        if root in written and root not in claimed and aliases.is_whole(name):
            claimed.add(root)
            found[number] = name
            continue
        own = f"{name}/output{number}"
        aliases.values[own] = replace(aliases.values[name], name=own)
        copies.append(Copy(name, own, 1, aliases.values[own].nbytes))
        found[number] = own
    return found, copies


def _place_joins(
    steps: tuple[Step, ...], aliases: Aliases, movable: set[str], fixed: set[str], align_bytes: int
) -> tuple[Step, ...]:
    """Place sources of joins in their targets."""
    # Joins are visited in reverse, so that a join that is a source of a later join lies in the later one's target.
    kept: list[Step] = []
    for step in reversed(steps):
        if isinstance(step, ParallelGroup):
            lanes = (_place_joins(lane, aliases, movable, fixed, align_bytes) for lane in step.lanes)
            kept.append(replace(step, lanes=tuple(lanes)))
        elif isinstance(step, Join):
            kept += reversed(_place_join_sources(step, aliases, movable, fixed, align_bytes))
        else:
            kept.append(step)
    return tuple(reversed(kept))


def _place_join_sources(
    step: Join, aliases: Aliases, movable: set[str], fixed: set[str], align_bytes: int
) -> list[Step]:
    """Place sources in the join's target if possible; return copies for the others."""
    shape = aliases.values[step.target].shape
    itemsize = aliases.values[step.target].nbytes // max(1, aliases.values[step.target].elements)
    rows, pitch = math.prod(shape[: step.axis]), math.prod(shape[step.axis :]) * itemsize
    if rows == 1 and step.target not in fixed and _try_alias_contiguous_join(step, aliases, align_bytes):
        return []
    copies: list[Step] = []
    start = 0
    for source in step.sources:
        width = math.prod(aliases.values[source].shape[step.axis :]) * itemsize
        root, _ = aliases.root(source)
        target, inside = aliases.root(step.target)
        aligned = (inside + start) % align_bytes == 0
        if rows == 1 and root in movable and root != target and aligned and aliases.is_whole(source):
            aliases.parents[root] = (step.target, start)
        elif not (rows == 1 and aliases.root(source) == (target, inside + start)):
            copies.append(Copy(source, step.target, rows, width, 0, width, start, pitch))
        start += width
    return copies


def _try_alias_contiguous_join(step: Join, aliases: Aliases, align_bytes: int) -> bool:
    """Alias the target to its sources if these are contiguous; return whether it was aliased."""
    root, start = aliases.root(step.sources[0])
    if root == step.target or step.target in aliases.parents or start % align_bytes:
        return False
    end = start
    for source in step.sources:
        if aliases.root(source) != (root, end):
            return False
        end += aliases.values[source].nbytes
    # The target then has no memory of its own and lies in the root, as its sources do.
    if len(step.sources) > 1 and end - start == aliases.values[step.target].nbytes:
        aliases.parents[step.target] = aliases.root(step.sources[0])
        return True
    return False
