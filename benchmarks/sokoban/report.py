"""What must hold of construction against Sokoban, in one place; tables for the terminal and for Markdown."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from benchmarks.common import Verdict, markdown
from benchmarks.sokoban.compare import WORSE, Compared

#: Construction's predicted best over Sokoban's: geometric mean over all operators, and any of the small ones.
ALL, SMALL = 1.05, 1.10
#: Sokoban considers, and prices in full, so many times more programs: geometric mean per class.
FEWER, FEWER_CLASSES = 20.0, "MCD"
#: Processor time Sokoban may take to enumerate a 4096^3 matmul (seconds).
SQUARE_S = 5.0
#: Operators of the evaluation that are small, besides the matmul of 128x256x256.
SMALL_IDS = ("M1", "M2", "128x256x256")
SQUARE_ID = "4096^3"
COLUMNS = ("class", "operators", "ratio", "worst", "considered", "Sokoban's", "times", "priced", "Sokoban's priced",
           "ms", "Sokoban's s")  # fmt: skip


def evaluation(records: Iterable[Compared]) -> list[Compared]:
    """Return the operators of the evaluation: all but the two beside it."""
    return [r for r in records if r.id not in (SQUARE_ID, SMALL_IDS[-1])]


def by_class(records: Iterable[Compared]) -> dict[str, list[Compared]]:
    """Return the operators of the evaluation by the letter of their class."""
    found: dict[str, list[Compared]] = {}
    for r in evaluation(records):
        found.setdefault(r.id[0], []).append(r)
    return found


def times_more(records: Sequence[Compared]) -> float:
    """Return how many times more programs Sokoban considers, geometric mean."""
    return statistics.geometric_mean(r.sokoban_considered / r.roller_considered for r in records)


def times_more_priced(records: Sequence[Compared]) -> float:
    """Return how many times more programs Sokoban prices in full, geometric mean."""
    return statistics.geometric_mean(max(1, r.sokoban_priced) / max(1, r.roller_priced) for r in records)


def verdicts(records: Sequence[Compared], kind: str) -> list[Verdict]:
    """Return every limit of a kind of device with what was found."""
    known = {r.id: r for r in records}
    everything, classes = evaluation(records), by_class(records)
    mean = statistics.geometric_mean(r.ratio for r in everything) if everything else None
    out = [_at_most("predicted best over Sokoban's, geometric mean", ALL, mean)]
    for letter in FEWER_CLASSES:
        for done, ratio_of in (("considered", times_more), ("priced in full", times_more_priced)):
            times = ratio_of(classes[letter]) if letter in classes else None
            value = "-" if times is None else f"{times:.0f}" if times >= 100 else f"{times:.1f}"
            name = f"programs {done} by Sokoban over construction's, class {letter}"
            out.append(Verdict(name, f">= {FEWER:g}", value, None if times is None else times >= FEWER))
    for name in SMALL_IDS:
        out.append(
            _at_most(f"predicted best over Sokoban's, {name}", SMALL, known[name].ratio if name in known else None)
        )
    if kind == "gpu":
        seconds = known[SQUARE_ID].sokoban_cpu_s if SQUARE_ID in known else None
        out.append(_at_most(f"seconds of one processor to enumerate {SQUARE_ID}", SQUARE_S, seconds))
    return out


def _at_most(name: str, limit: float, value: float | None) -> Verdict:
    return Verdict(
        name, f"<= {limit:g}", "-" if value is None else f"{value:.3f}", None if value is None else value <= limit
    )


def class_rows(records: Sequence[Compared]) -> list[tuple[str, ...]]:
    """Return the table of classes: medians but for the ratios, whose geometric mean and maximum count."""
    groups = [*by_class(records).items(), ("all", evaluation(records))]
    return [_row(name, group) for name, group in groups if group]


def _row(name: str, group: Sequence[Compared]) -> tuple[str, ...]:
    def median(values: Iterable[float]) -> float:
        return statistics.median(values)

    worst = max(group, key=lambda r: r.ratio)
    return (
        name,
        str(len(group)),
        f"{statistics.geometric_mean(r.ratio for r in group):.4f}",
        f"{worst.ratio:.3f} ({worst.id})",
        f"{median(r.roller_considered for r in group):.0f}",
        f"{median(r.sokoban_considered for r in group):.0f}",
        f"{times_more(group):.0f}",
        f"{median(r.roller_priced for r in group):.0f}",
        f"{median(r.sokoban_priced for r in group):.0f}",
        f"{median(r.roller_cpu_s for r in group) * 1e3:.1f}",
        f"{median(r.sokoban_cpu_s for r in group):.2f}",
    )


def rule_rows(records: Sequence[Compared]) -> list[tuple[str, ...]]:
    """Return the rules that excluded better programs: how often each was the first, and what it cost."""
    worse = [r for r in records if r.rules]
    count = Counter(r.rules[0] for r in worse)
    out = []
    for rule, n in count.most_common():
        mine = [r for r in worse if r.rules[0] == rule]
        out.append((rule, str(n), f"{max(r.ratio for r in mine):.3f}", ", ".join(r.id for r in mine)))
    return out


def worse_rows(records: Sequence[Compared]) -> list[tuple[str, ...]]:
    """Return the operators where construction is worse, worst first, with both programs."""
    worse = sorted((r for r in records if r.rules), key=lambda r: -r.ratio)
    return [(r.id, f"{r.ratio:.3f}", "; ".join(r.rules), r.roller_program, r.sokoban_program) for r in worse]


def as_markdown(devices: Mapping[str, tuple[str, Sequence[Compared]]]) -> str:
    """Return the report over devices, ``{name: (kind, records)}``."""
    lines = [
        "# Construction against Sokoban", "",
        "Written by `python -m benchmarks.sokoban`. The page compares tilings: both policies exclude what Sokoban's "
        "space does not contain (traversal of windows, pipelines, matrix units and, on GPUs, Winograd's algorithm). "
        "Both rank by the same model: *ratio* is the time of construction's predicted best program over that of "
        "Sokoban's (geometric mean). *Considered* counts the programs of construction's pool and the tilings of "
        "Sokoban's space (threads and registers fit; the scratchpad is not checked yet); *priced* counts those priced "
        "in full. Sokoban starts from construction's best program and skips what its bounds exclude, so *priced* shows "
        "how tight the bounds are. The limit is on the number of programs priced, and is judged twice: against the "
        "whole space (considered), which a Sokoban without bounds would price, and against this Sokoban, which prunes "
        "(priced in full). Times are medians, on one processor.",
    ]  # fmt: skip
    for name, (kind, records) in devices.items():
        lines += ["", f"## {name}", "", markdown(COLUMNS, class_rows(records)), ""]
        lines += [f"- {v.name}: {v.value} (limit {v.limit}): **{v.word}**" for v in verdicts(records, kind)]
        if any(r.rules for r in records):
            lines += [
                "",
                f"Where construction is more than {WORSE - 1:.0%} worse, the rule that excluded the better tile:",
            ]
            lines += ["", markdown(("rule", "operators", "worst", "ids"), rule_rows(records)), ""]
            lines += [markdown(("id", "ratio", "rules", "construction", "Sokoban"), worse_rows(records))]
    return "\n".join(lines) + "\n"
