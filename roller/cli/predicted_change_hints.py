"""Hints printed by ``roller profile``: predicted effects of changes on time, memory and cost."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from roller.cli.memory_change_text import LONGEST_NAME, memory_change_text
from roller.cli.sweep import price_text
from roller.cli.usage_error import UsageError
from roller.errors import printable
from roller_runtime.core.display import truncate_text

if TYPE_CHECKING:
    from roller.cli.screen import Screen
    from roller.insight.rate_card import RateCard
    from roller.insight.step_profile.step_profile import StepProfile
    from roller.insight.step_profile.what_if_hints import Hint


def read_rate_card_option(path: Path | None, with_hints: bool) -> RateCard | None:
    """Read the rate card given by ``--prices``, which needs ``--hints``; return ``None`` without the option."""
    from roller.insight.rate_card import read_rate_card

    if path is None:
        return None
    if not with_hints:
        raise UsageError("--prices: expected --hints beside it, got none. Add --hints, or leave --prices out.")
    return read_rate_card(path)


def hints_with_costs(profile: StepProfile, prices: RateCard | None) -> tuple[Hint, ...]:
    """Return the hints for a profile, with costs if the rate card contains the device."""
    return profile.hints(None if prices is None else prices.per_hour(profile.device))


def print_hints(screen: Screen, profile: StepProfile, hints: tuple[Hint, ...], prices: RateCard | None) -> None:
    """Print a table of hints, then notes, then the changes that have no prediction, with the reasons."""
    answered = [hint for hint in hints if not hint.not_asked]
    priced = prices is not None and any(hint.price_after is not None for hint in answered)
    money = [prices.currency] if prices is not None and priced else []
    table = Table("hint", "a step", "change", "memory", *money, "at", "rests on", box=None)
    for column in table.columns[1:-2]:
        column.justify = "right"
    for hint in answered:
        table.add_row(
            ("at most: " if hint.is_bound else "") + truncate_text(printable(hint.change), LONGEST_NAME),
            f"{1e3 * hint.iteration_s:.3f} ms", _change_text(hint), memory_change_text(hint.memory),
            *("" if hint.price_after is None else price_text(hint.price_after) for _ in money),
            printable(hint.line), "" if hint.is_in_place else hint.rests_on,
        )  # fmt: skip
    if answered:
        now = f"{1e3 * (answered[0].iteration_s - answered[0].delta_s):.3f} ms a step"
        of = "samples" if profile.samples else "steps"
        cost = [f" and {price_text(answered[0].price_before or 0.0)} {currency} a million {of}" for currency in money]
        screen.say(f"What would change it, compared with {now}{''.join(cost)}; all figures are {answered[0].kind}.")
        screen.print(table)
    for sentence in (*_unknown_memory_reasons(answered), *_price_notes(profile, prices)):
        screen.say(printable(sentence))
    for hint in hints:
        if hint.not_asked:
            screen.say(printable(f"{hint.change}: not asked: {hint.not_asked}"))


def _unknown_memory_reasons(hints: list[Hint]) -> list[str]:
    """Return a sentence for each change whose memory effect is unknown for a specific reason."""
    effects = [(hint.change, hint.memory) for hint in hints]
    return [f"{change}: memory: {effect.reason}" for change, effect in effects if effect.has_specific_reason]


def _change_text(hint: Hint) -> str:
    if hint.is_in_place:
        return "already in place"
    delta = f"{1e3 * hint.delta_s:+.3f} ms"
    return f"{delta}, hardly anything" if hint.is_hardly_anything else delta


def _price_notes(profile: StepProfile, prices: RateCard | None) -> tuple[str, ...]:
    if prices is None:
        return ()
    unfit = "" if profile.fits else "The step does not fit: its cost is not shown."
    return (*filter(None, [prices.missing_rate_note(profile.device), unfit]), *prices.old_rate_notes([profile.device]))
