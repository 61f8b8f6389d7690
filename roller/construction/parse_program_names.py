"""Parses program names, as ``construct`` prints them, for ``predict``, ``explain`` and ``why_not``."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from roller import perf
from roller.construction.block_capacity_checks import check_block_capacities, with_hard_limits
from roller.construction.check_user_named_programs import check_program
from roller.core.matrix_instruction_fragment import Fragment
from roller.errors import TileError, did_you_mean, shown
from roller.expr import TensorExpr
from roller.expr.canonical import fuse_axes, group_axes, inline_unit_reduction
from roller.expr.join_split_channel_axes import join_channel_digits
from roller.expr.split_commonly_divided_axes import rename_reserved_axes
from roller.hardware import DeviceSpec
from roller.perf.estimate import Estimate
from roller.templates import price_with_templates
from roller.tile.alignment import RULES, broken_rules
from roller.tile.geometry import Geometry
from roller.tile.program import RProgram
from roller.tile.program_name import REMEDY, ProgramName, parse_program_name
from roller.tile.structures import structure_named
from roller.tile.winograd_batched_product import tiled_product_of_program

#: Largest number allowed in a name, so that counts stay exact in 64 bits.
_MOST = 2**31 - 1


def name_of_program_or_text(program: object) -> str:
    """Return the name of a program, or a text unchanged; raise an error for anything else."""
    if isinstance(program, (str, RProgram)):
        return str(program)
    raise TileError(f"program: expected the name of a program, or a program, got {shown(program)}. {REMEDY}")


def program_from_name(expr: TensorExpr, spec: DeviceSpec, name: str) -> RProgram:
    """Return the program with the given name; the rules that it relaxes are determined for this device."""
    said = parse_program_name(name)
    if said.kind != spec.kind:
        raise TileError(
            f"program: expected one for a device of kind '{spec.kind}' ({spec.name}), got a program for '{said.kind}'. "
            "Name a device of that kind."
        )
    form = _find_form(expr, said)
    geometry = Geometry.of(form)
    _check_layers(said, spec)
    fragment = _find_fragment(said, geometry, spec)
    _check_names(said, form)
    _check_numbers(said)
    axis, elements = said.vector or (None, 1)
    program = RProgram(
        form, said.kind, said.structure, tuple((layer, tuple(e for _, e in t)) for layer, t in said.tiles), said.pad,
        said.staged, axis, elements, said.interleaved, said.split_k, (), said.constants,
        said.nontemporal, said.stages, said.raster, fragment, said.matrix_axes,
    )  # fmt: skip
    check_program(program, spec)
    return replace(program, relaxed=broken_rules(program, spec))


def estimate_named_program(program: RProgram, spec: DeviceSpec, warm: tuple[str, ...] = ()) -> Estimate:
    """Return the estimate of a program, equal bit for bit to the estimate from ``construct``."""
    estimate = price_with_templates.estimate_program(program, spec, warm)
    if not math.isfinite(estimate.seconds):  # budgets reserved for the compiler bind construction, not the device
        estimate = price_with_templates.estimate_program(program, with_hard_limits(spec), warm)
    if not math.isfinite(estimate.seconds):
        raise _exceeded_capacity_error(program, spec)
    return estimate


def constructed_forms(expr: TensorExpr) -> Iterator[TensorExpr]:
    """Yield every form of an expression that construction uses, each once, starting with the usual forms."""
    fused, plain = fuse_axes(expr), rename_reserved_axes(expr)
    made = [fused, group_axes(fused), group_axes(fused, reductions=False), join_channel_digits(fused)]
    made += [plain, group_axes(plain), group_axes(plain, reductions=False), join_channel_digits(plain), expr]
    made.append(inline_unit_reduction(expr))
    seen: list[TensorExpr] = []
    for form in made:
        if form is not None and form not in seen:
            seen.append(form)
            yield form


def _find_form(expr: TensorExpr, said: ProgramName) -> TensorExpr:
    known: list[tuple[str, ...]] = []
    for form in constructed_forms(expr):
        known.append(tuple(a.name for a in form.axes))
        if known[-1] == said.axes:
            return form
    raise TileError(
        f"program: expected tiles over the axes of a form of {expr.name} ({' or '.join(map(str, known))}), "
        f"got {said.axes}. Name the expression the program was constructed for."
    )


def _check_layers(said: ProgramName, spec: DeviceSpec) -> None:
    layers = [layer.name for layer in spec.memory_layers if layer.tiled]
    if [layer for layer, _ in said.tiles] != layers:
        raise TileError(f"program: expected tiles in {layers} of {spec.name}, got {[x for x, _ in said.tiles]}.")
    structure_named(said.structure)
    for rule in said.relaxed:
        if rule not in RULES:
            raise TileError(f"program: '{rule}' is no alignment rule; they are {list(RULES)}.")


def _find_fragment(said: ProgramName, geometry: Geometry, spec: DeviceSpec) -> Fragment | None:
    """Return the matrix instruction that a name contains, or ``None``; raise an error if it cannot use the axes."""
    if (said.fragment is None) == structure_named(said.structure).on_matrix_unit:
        raise TileError(
            f"program: expected 'fragment=NAME:M,N,K' of a 'matrix' program, and of no other, got '{said.structure}' "
            f"with fragment {said.fragment}."
        )
    if said.fragment is None:
        return None
    names = [f.name for f in spec.fragments]
    if said.fragment not in names:
        hint = did_you_mean(said.fragment, names) or "."
        raise TileError(f"program: '{said.fragment}' is no fragment of {spec.name}{hint} It has {names or 'none'}.")
    fragment = next(f for f in spec.fragments if f.name == said.fragment)
    ways = spec.traits.module_for("templates", "checks").matrix_axes(geometry, spec, fragment)
    axes = [tuple(geometry.names[a] for a in x) for x in ways]
    if said.matrix_axes not in axes:
        raise TileError(
            f"program: expected m, n and k axes of '{said.fragment}' among {axes or 'none (it does not compute this)'}"
            f", got {said.matrix_axes}."
        )
    return fragment


def _check_names(said: ProgramName, form: TensorExpr) -> None:
    """Raise an error if a name lists an axis or tensor that the form lacks, or lists one twice."""
    inputs, loads = [t.name for t in form.inputs], [x.tensor for s in form.stages for x in s.loads]
    for word, given, known in (
        ("staged", said.staged, loads), ("pad", [t for t, _ in said.pad], list(said.staged)),
        ("constants", said.constants, inputs), ("vector", [said.vector[0]] if said.vector else [], said.axes),
    ):  # fmt: skip
        for n in given:
            if n not in known:
                hint = did_you_mean(n, known) or "."
                raise TileError(f"program: {word}: expected one of {list(dict.fromkeys(known))}, got '{n}'{hint}")
        if len(set(given)) < len(given):
            raise TileError(f"program: {word}: expected each once, got {list(given)}.")


def _check_numbers(said: ProgramName) -> None:
    numbers = [said.split_k, said.stages, said.raster, *([said.vector[1]] if said.vector else [])]
    numbers += [e for _, tile in said.tiles for _, e in tile]
    if min(numbers) < 1 or max([*numbers, *(n for _, n in said.pad)]) > _MOST:
        raise TileError(f"program: expected numbers from 1 to {_MOST}, got {min(numbers)} to {max(numbers)}.")
    for layer, tile in said.tiles:
        if math.prod(e for _, e in tile) > 2**53:
            raise TileError(f"program: layer '{layer}': expected at most {2**53} points in all, got {dict(tile)}.")


def _exceeded_capacity_error(program: RProgram, spec: DeviceSpec) -> TileError:
    if spec.traits.blocks:
        inner = tiled_product_of_program(program) or program
        try:
            check_block_capacities(inner, perf.batch_of([inner]), spec)
        except TileError as error:
            return error
        return TileError(
            f"program: expected one that runs on {spec.name}: its registers leave no room for {program.stages} stages, "
            f"or no copies past the registers. Take fewer stages or smaller tiles."
        )
    reason = spec.traits.module_for("templates", "checks").exceeded(program, spec)
    return TileError(f"program: tiles {dict(program.tiles)} on {spec.name}: {reason}. Make them smaller.")
