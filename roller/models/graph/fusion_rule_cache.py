"""Parts as numbered forms plus names: because layers repeat, rules are applied once per pair of forms.

A :class:`NamedForm` is a form (a part with numbered tensors) and the names that the numbers stand for. The result of a
rule is cached by the two forms and by the tensors that they have in common.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from roller.expr import Const, Load, transform_scalar, walk_scalar_tree
from roller.models.graph.lowered_parts import ComputedPart
from roller.models.graph.model_independent_kernels import number_tensor_and_axis_names

#: Result of a rule on two parts: the fused part, a reason for refusing, or ``None`` if the rule does not apply.
RuleOutcome: TypeAlias = ComputedPart | str | None
Rule: TypeAlias = Callable[[ComputedPart, ComputedPart], RuleOutcome]

_NAME = re.compile(r"@(\d+)(.*)", re.DOTALL)


@dataclass(frozen=True, eq=False)
class NamedForm:
    """A numbered form with the names of its tensors: inputs first, then results of stages."""

    form: ComputedPart
    names: tuple[str, ...]
    nodes: tuple[str, ...] = ()

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the values read."""
        return self.names[: len(self.form.reads)]

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the values written."""
        return tuple(self.names[int(o[1:])] for o in self.form.outputs)


@dataclass
class FormCache:
    """All distinct forms of a model, and cached results of rules."""

    _known: dict[tuple[ComputedPart, bool], ComputedPart] = field(default_factory=dict)
    _same: dict[int, tuple[ComputedPart, ComputedPart]] = field(default_factory=dict)
    _made: dict[tuple[object, ...], tuple[ComputedPart, tuple[str, ...]] | str | None] = field(default_factory=dict)

    def named_form_of_part(self, part: ComputedPart) -> NamedForm:
        """Return a part as a piece, that is, a form and names."""
        known = part.__dict__.get("numbered")  # set for repeated nodes
        if known is None:
            form, names = number_tensor_and_axis_names(part)
            return NamedForm(self._intern_form(form), names, part.nodes)
        form, names = known
        if id(form) not in self._same:
            self._same[id(form)] = form, self._intern_form(form)
        return NamedForm(self._same[id(form)][1], names, part.nodes)

    def _intern_form(self, form: ComputedPart) -> ComputedPart:
        """Return the first form equal to this one."""
        # Zeros of different sign are equal numbers but make different forms.
        zeros = (
            n.value for s in form.stages for n in walk_scalar_tree(s.body) if isinstance(n, Const) and n.value == 0
        )
        return self._known.setdefault((form, any(math.copysign(1, z) < 0 for z in zeros)), form)

    def apply_change(self, change: Callable[[ComputedPart], ComputedPart], piece: NamedForm) -> NamedForm:
        """Return the result of applying ``change`` to a piece."""
        key = (change, id(piece.form))
        if key not in self._made:
            joint = {n: k for k, n in enumerate(piece.names)}
            self._made[key] = self._intern_form_and_name_patterns(change(_part_with_joint_numbers(piece, joint)))
        found = self._made[key]
        assert isinstance(found, tuple)
        return self._fill_form_names(found, piece.names, piece.nodes)

    def joined(self, rule: Rule, one: NamedForm, other: NamedForm) -> NamedForm | str | None:
        """Return the result of ``rule`` for two pieces: a piece, a reason to refuse, or ``None``."""
        joint = {n: k for k, n in enumerate(dict.fromkeys((*one.names, *other.names)))}
        key = (rule, id(one.form), id(other.form), tuple(joint[n] for n in other.names))
        if key not in self._made:
            outcome = rule(_part_with_joint_numbers(one, joint), _part_with_joint_numbers(other, joint))
            self._made[key] = (
                self._intern_form_and_name_patterns(outcome) if isinstance(outcome, ComputedPart) else outcome
            )
        found = self._made[key]
        if not isinstance(found, tuple):
            return found
        return self._fill_form_names(found, tuple(joint), tuple(dict.fromkeys((*one.nodes, *other.nodes))))

    def _intern_form_and_name_patterns(self, part: ComputedPart) -> tuple[ComputedPart, tuple[str, ...]]:
        form, names = number_tensor_and_axis_names(part)
        return self._intern_form(form), names

    def _fill_form_names(
        self, found: tuple[ComputedPart, tuple[str, ...]], names: Sequence[str], nodes: tuple[str, ...]
    ) -> NamedForm:
        form, patterns = found
        return NamedForm(form, tuple(_fill_name_pattern(p, names) for p in patterns), nodes)


def _fill_name_pattern(pattern: str, names: Sequence[str]) -> str:
    """Return a pattern like ``@3/acc`` with the name at position 3 inserted."""
    match = _NAME.fullmatch(pattern)
    assert match is not None, pattern
    return names[int(match[1])] + match[2]


def _part_with_joint_numbers(piece: NamedForm, joint: dict[str, int]) -> ComputedPart:
    """Return a piece as a part with tensors ``@0``, ``@1`` ..., numbered by ``joint`` over both parts."""
    names = {f"#{k}": f"@{joint[n]}" for k, n in enumerate(piece.names)}
    form = piece.form

    def leaf(n: object) -> object:
        return replace(n, tensor=names[n.tensor]) if isinstance(n, Load) else n

    stages = tuple(
        replace(s, output=replace(s.output, name=names[s.name]), body=transform_scalar(s.body, leaf))  # type: ignore[arg-type]
        for s in form.stages
    )
    reads = tuple(replace(t, name=names[t.name]) for t in form.reads)
    return ComputedPart(reads, stages, tuple(names[o] for o in form.outputs))
