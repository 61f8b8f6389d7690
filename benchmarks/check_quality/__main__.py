"""``python -m benchmarks.check_quality``: false refusals of right kernels, and planted errors found."""

from __future__ import annotations

import json
import multiprocessing
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.check_quality.kernels import compiled
from benchmarks.check_quality.narrow import interpreted
from benchmarks.common import HERE

#: Right kernels of one task, and mutants of one compiled kernel.
_CASES, _MUTANTS_EACH = 50, 20
Row = dict[str, Any]


def _known(journal: Path) -> list[Row]:
    return [json.loads(line) for line in journal.read_text().splitlines()] if journal.exists() else []


def _results(tasks: Iterable[tuple[Any, tuple[int, int]]], workers: int, until: float) -> Iterator[list[Row]]:
    """Run tasks on processes of their own."""
    left = iter(tasks)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        running = {pool.submit(fn, *args) for _, (fn, args) in zip(range(2 * workers), left, strict=False)}
        while running:
            done = next(as_completed(running))
            running.remove(done)
            yield done.result()
            following = next(left, None) if time.monotonic() < until else None
            if following is not None:
                running.add(pool.submit(following[0], *following[1]))


def summary(found: list[Row]) -> str:
    """Return the Markdown of all outcomes."""
    right = [r for r in found if not r["kind"]]
    mutants = [r for r in found if r["kind"]]
    lines = ["# Quality of the check", ""]
    for name, mine in (("interpreted", True), ("compiled", False)):
        some = Counter(r["result"] for r in right if bool(r.get("interpreted")) == mine)
        lines.append(f"- Correct kernels, {name}: {some['right']} accepted, {some['refused']} refused"
                     + "".join(f", {some[r]} {r}" for r in ("not built", "not run") if some[r]) + ".")  # fmt: skip
    elements = sum(r.get("elements", 0) for r in right)
    if elements:
        share = sum(r.get("anything", 0) for r in right) / elements
        lines.append(f"- Elements of interpreted kernels for which any value is accepted (NaN, overflow, division by "
                     f"a value that may be zero): {share:.1%}.")  # fmt: skip
    wrong = Counter(r["result"] for r in mutants)
    hit = wrong["found"] + wrong["crashed"]
    lines.append(f"- Mutants with wrong results: {hit + wrong['missed']}; found {hit} ({wrong['crashed']} by a crash), "
                 f"missed {wrong['missed']}. Without effect: {wrong['no effect']}; "
                 f"not built: {wrong['not built']}; not run: {wrong['not run']}."
                 )  # fmt: skip
    heads = ("planted error", "found whole", "found in a sample", "crashed", "missed", "no effect")
    lines += ["", f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for kind in sorted({r["kind"] for r in mutants}):
        mine = [r for r in mutants if r["kind"] == kind]
        count = Counter((r["result"], r["whole"]) for r in mine)
        cells = (count["found", True], count["found", False], count["crashed", True] + count["crashed", False],
                 count["missed", True] + count["missed", False],
                 count["no effect", True] + count["no effect", False])  # fmt: skip
        lines.append(f"| {kind} | " + " | ".join(map(str, cells)) + " |")
    for r in found:
        if r["result"] in ("refused", "missed"):
            lines.append(f"\n{r['result']}: seed {r['seed']}, {r['expression']}, {r['kind']}: {r['text']}")
    return "\n".join(lines) + "\n"


def main(
    right: Annotated[int, typer.Option(help="Right kernels of random expressions, interpreted.")] = 5000,
    mutants: Annotated[int, typer.Option(help="Mutants of compiled kernels that are wrong.")] = 2000,
    workers: Annotated[int, typer.Option(help="Processes.")] = 2,
    minutes: Annotated[float, typer.Option(help="Start nothing new after this long; run again to go on.")] = 60.0,
    out: Annotated[Path, typer.Option(help="Folder of check_quality.md and its journal.")] = HERE / "results",
    strict: Annotated[bool, typer.Option(help="Exit 1 where a right kernel is refused or a wrong one missed.")] = False,
) -> None:
    """Measure both rates of the check; resumes from its journal."""
    journal = out / "check_quality.jsonl"
    found, until = _known(journal), time.monotonic() + 60 * minutes
    done = {bool(m): {r["seed"] for r in found if bool(r.get("interpreted")) == bool(m)} for m in (0, 1)}

    def wrong() -> int:
        return sum(r["result"] in ("found", "crashed", "missed") for r in found)

    def tasks() -> Iterator[tuple[Any, tuple[int, int]]]:
        for first in range(0, right, _CASES):
            if first not in done[True]:
                yield interpreted, (first, min(_CASES, right - first))
        seed = 0
        while wrong() < mutants:
            if seed not in done[False]:
                yield compiled, (seed, _MUTANTS_EACH)
            seed += 1

    journal.parent.mkdir(parents=True, exist_ok=True)
    with journal.open("a") as lines:
        for rows in _results(tasks(), workers, until):
            found += rows
            lines.writelines(json.dumps(r) + "\n" for r in rows)
            lines.flush()
    text = summary(found)
    (out / "check_quality.md").write_text(text)
    typer.echo(text)
    if strict and any(r["result"] in ("refused", "missed") for r in found):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
