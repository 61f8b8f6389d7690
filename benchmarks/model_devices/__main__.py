"""``python -m benchmarks.model_devices``: the table of all published kernels, its limits, a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.common import HERE, Verdict, check_outputs, markdown, screen, table, write_json
from benchmarks.model_devices.accuracy import Found, by_bound, by_family, write_accuracy
from benchmarks.model_devices.cases import SPECS, cases
from benchmarks.model_devices.left_out import FREE, LeftOut, judged, left_out
from benchmarks.model_devices.picture import draw
from benchmarks.model_devices.pricing import Priced, priced
from benchmarks.model_devices.summary import Line, lines, rank_verdicts
from roller.hardware import DeviceSpec, list_specs, load_spec

_COLUMNS = ("family", "device", "kernels", "mean error", "median", "worst", "median ratio", "Spearman", "limit",
            "holds", "roofline mean", "roofline Spearman")  # fmt: skip
_LEFT_OUT_COLUMNS = ("device left out", "family", "as stated", "as the others choose", "limit", "holds", "constants")
_ACCURACY_COLUMNS = ("specification", "of", "expected error", "kernels")
#: Which kernels the choice of constants is made with, and judged by: every n-th.
_LEFT_OUT_EVERY = 8
_WORST_COLUMNS = ("family", "device", "shape", "measured ms", "predicted ms", "ratio", "bound by")


def _cells(line: Line) -> tuple[str, ...]:
    m, r = line.model, line.roofline
    rank = lambda e: f"{e.rank:.3f}"  # noqa: E731
    return (
        line.family, line.device, str(m.count), f"{m.mean:.1%}", f"{m.median:.1%}", f"{m.worst:.0%}", f"{m.bias:.2f}",
        rank(m), line.verdict.limit, line.verdict.word, f"{r.mean:.1%}", rank(r),
    )  # fmt: skip


def _worst_cells(p: Priced) -> tuple[str, ...]:
    c = p.case
    return (
        c.family, c.device, " ".join(map(str, c.shape)), f"{c.measured_s * 1e3:.4g}", f"{p.predicted_s * 1e3:.4g}",
        f"{p.ratio:.2f}", p.bottleneck,
    )  # fmt: skip


def _accuracy_cells(found: Found) -> tuple[str, ...]:
    return found.spec, found.name, f"{found.error:.1%}", str(found.kernels)


def _left_out_verdict(x: LeftOut) -> Verdict:
    holds = None if x.limit is None else x.chosen <= x.limit
    limit = "-" if x.limit is None else f"{x.limit:.1%}"
    return Verdict(f"{x.family}, {x.device} left out", limit, f"{x.chosen:.1%}", holds)


def _left_out_cells(x: LeftOut) -> tuple[str, ...]:
    verdict = _left_out_verdict(x)
    constants = ", ".join(f"{name.split('.')[-1]} {value:g}" for name, value in x.constants)
    return x.device, x.family, f"{x.stated:.1%}", verdict.value, verdict.limit, verdict.word, constants


def _left_out(every: int) -> list[LeftOut]:
    chosen = [c for c in cases() if judged(c)][:: _LEFT_OUT_EVERY * every]
    return list(left_out(chosen, {c.spec: load_spec(c.spec) for c in chosen}))


def _wanted(device: str, every: int) -> tuple[list[Priced], list[str]]:
    """Return the predictions of the devices asked for, and the devices left out because they have no specification."""
    names, specs = list_specs(), dict[str, DeviceSpec]()
    absent = [d for d, s in SPECS.items() if s not in names and device in ("", d, s)]
    chosen = [c for c in cases() if c.device not in absent and device in ("", c.device, c.spec)][::every]
    if not chosen:
        raise typer.BadParameter(f"--device: expected one of {list(SPECS)} that has a specification, got '{device}'.")
    for c in chosen:
        specs.setdefault(c.spec, load_spec(c.spec))
    return list(priced(chosen, specs)), absent


def _markdown(
    head: Sequence[str], table_lines: Sequence[Line], ranks: Sequence[Verdict], worst: Sequence[Priced],
    others: Sequence[LeftOut], accuracy: Sequence[Found],
) -> str:  # fmt: skip
    verdicts = [(v.name, v.limit, v.value, v.word) for v in ranks]
    parts = [
        "# The model on several devices",
        *head,
        markdown(_COLUMNS, map(_cells, table_lines)),
        markdown(("ranks", "limit", "value", "holds"), verdicts),
        *_left_out_parts(others),
        "## Expected errors",
        _ACCURACY_TEXT,
        markdown(_ACCURACY_COLUMNS, map(_accuracy_cells, accuracy)),
        "![Predicted over measured](model_devices.png)",
        "## Largest errors",
        markdown(_WORST_COLUMNS, map(_worst_cells, worst)),
    ]
    return "\n\n".join(parts) + "\n"


_ACCURACY_TEXT = (
    "Root mean square of ln(published / predicted), by the bottleneck and the family of a kernel; `--write-accuracy` "
    "writes the errors by bottleneck into the specifications. Comparisons of Roller's own kernels with those of a "
    "library (no tile, no policy) are left out."
)


def _left_out_parts(others: Sequence[LeftOut]) -> list[str]:
    if not others:
        return []
    text = (
        f"The free constants are {', '.join(f'`{n}`' for n in FREE)}. They are assumed and the same on all devices\n"
        f"(the last was found on these devices). The table covers every {_LEFT_OUT_EVERY}th float32 kernel. It gives "
        "mean errors with\n"
        "the constants as stated and with the constants that the other devices alone would choose; the limit is 1.5\n"
        "times that of the table above. All other parameters are each device's own, from datasheets and\n"
        "micro-benchmarks, or carried over from a V100."
    )
    return ["## One device left out", text, markdown(_LEFT_OUT_COLUMNS, map(_left_out_cells, others))]


def _largest(found: Sequence[Priced], count: int) -> list[Priced]:
    """Return the largest errors (by factor) of every family, ``count`` each."""
    out: list[Priced] = []
    for family in dict.fromkeys(p.case.family for p in found):
        mine = [p for p in found if p.case.family == family]
        out += sorted(mine, key=lambda p: -max(p.ratio, 1 / p.ratio))[:count]
    return out


def main(
    device: Annotated[str, typer.Option(help="One device of the tables, or its specification; all by default.")] = "",
    every: Annotated[int, typer.Option(min=1, help="Take every n-th kernel only: a quick look.")] = 1,
    largest: Annotated[int, typer.Option(min=0, help="Largest errors told of every family.")] = 5,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 where a limit is missed.")] = False,
    leave_one_out: Annotated[bool, typer.Option(help="Also predict each device by constants of the others.")] = False,
    accuracy: Annotated[bool, typer.Option("--write-accuracy", help="Write the errors into specifications.")] = False,
    write: Annotated[bool, typer.Option("--write", help="Write the results' Markdown and picture.")] = False,
    folder: Annotated[Path, typer.Option(help="Where --write puts them.")] = HERE / "results",
    json: Annotated[Path | None, typer.Option(help="Also write every kernel's times to this file.")] = None,
) -> None:
    """Hold the GPU model against published times of library kernels, a roofline beside it."""
    text, image = folder / "model_devices.md", folder / "model_devices.png"
    check_outputs(json, *((text, image) if write else ()))
    found, absent = _wanted(device, every)
    told, ranks, worst = list(lines(found)), list(rank_verdicts(found)), _largest(found, largest)
    others, errors = _left_out(every) if leave_one_out else [], [*by_bound(found), *by_family(found)]
    out = screen()
    out.print(table("predicted against published times", _COLUMNS, map(_cells, told)))
    out.print(table("", ("ranks", "limit", "value", "holds"), [(v.name, v.limit, v.value, v.word) for v in ranks]))
    if others:
        out.print(table("one device left out", _LEFT_OUT_COLUMNS, map(_left_out_cells, others)))
    out.print(table("expected errors (one sigma of ln)", _ACCURACY_COLUMNS, map(_accuracy_cells, errors)))
    out.print(table("largest errors", _WORST_COLUMNS, map(_worst_cells, worst)))
    head = [f"Without {', '.join(absent)}: no specification."] if absent else []
    for line in head:
        out.print(line)
    if write:
        text.write_text(_markdown(head, told, ranks, worst, others, errors))
        out.print(draw(found, image) or f"{text}, {image}")
    for path in write_accuracy(found) if accuracy else ():
        out.print(f"{path}: accuracy")
    write_json(json, [_record(p) for p in found])
    verdicts = (*(x.verdict for x in told), *ranks, *map(_left_out_verdict, others))
    missed = [v.name for v in verdicts if v.holds is False]
    out.print(f"limits missed: {'; '.join(missed) or 'none'}")
    if strict and missed:
        raise typer.Exit(1)


def _record(p: Priced) -> dict[str, object]:
    c = p.case
    return {"device": c.device, "family": c.family, "shape": list(c.shape), "measured_s": c.measured_s,
            "predicted_s": p.predicted_s, "roofline_s": p.roofline_s, "bottleneck": p.bottleneck}  # fmt: skip


if __name__ == "__main__":
    typer.run(main)
