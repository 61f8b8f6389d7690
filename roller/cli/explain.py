"""``roller explain``: explain why the best program was chosen and why a different one was not."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

import roller
from roller.cli.shared_options_and_tables import (
    DeviceOption,
    ExprArgument,
    JsonOption,
    SetOption,
    console,
    load_device_spec,
    parse_tiles,
    print_json,
)
from roller.errors import TileError
from roller.explanation.explanation import ordered_sections
from roller.explanation.render_sections import WIDTH, ExplanationSection, section_text_lines
from roller.explanation.why_not import comparison_sections

if TYPE_CHECKING:
    from roller.explanation.why_not import WhyNot
    from roller.hardware import DeviceSpec

ProgramOption = Annotated[
    str | None, typer.Option("--program", "-p", metavar="NAME", help="A program of `roller construct`; else the best.")
]
WhyNotOption = Annotated[
    str | None,
    typer.Option(
        "--why-not",
        metavar="NAME|TILES",
        help="A program's name, or tiles: 'shared=i:64,j:64,k:8 register=4,4 stages=2'.",
    ),
]
#: Parameters of a program that ``--why-not`` accepts next to its tiles.
_NUMBERS = ("stages", "split_k", "raster")


def explain_command(
    expression: ExprArgument,
    device: DeviceOption = "cpu",
    program: ProgramOption = None,
    why_not: WhyNotOption = None,
    as_json: JsonOption = False,
    settings: SetOption = None,
) -> None:
    """Explain how the best program is constructed, the terms of its time, and what would improve it.

    With --why-not, name the capacity or term that makes another program worse. Nothing is built or run.
    """
    spec = load_device_spec(device, settings)
    expr = roller.ops.parse(expression)
    if why_not is not None:
        if program is not None:
            raise typer.BadParameter("expected --program or --why-not, which compares with the best program; got both.")
        against = _explain_why_not(expr, spec, why_not)
        _show(comparison_sections(against), against.to_dict(), as_json)
        return
    found = roller.explain(expr, spec, program)
    _show(ordered_sections(found), found.to_dict(), as_json)


def _explain_why_not(expr: roller.TensorExpr, spec: DeviceSpec, text: str) -> WhyNot:
    """Explain why the program with the given name or tiles was not chosen."""
    words = text.split()
    if "/" in words[0] if words else True:
        return roller.why_not(expr, spec, text)
    given = dict(w.partition("=")[::2] for w in words)
    how: dict[str, Any] = {}
    for name in _NUMBERS:
        if name in given:
            if not given[name].isdecimal():
                raise TileError(f"--why-not: {name}: expected a whole number, got '{given[name]}'.")
            how[name] = int(given[name])
    tiles = [w for w in words if w.partition("=")[0] not in (*_NUMBERS, "fragment")]
    return roller.why_not(expr, spec, parse_tiles(tiles, "--why-not"), fragment=given.get("fragment"), **how)


def _show(found: Sequence[ExplanationSection], data: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(data)
        return
    screen = console()
    width = screen.width if screen.is_terminal else WIDTH
    for section in found:
        title = textwrap.fill(section.title, width, break_on_hyphens=False)
        screen.print(f"\n{title}", style="bold", soft_wrap=True)
        for line in section_text_lines(section, width):
            screen.print(line, soft_wrap=True)
