"""The clock on a machine made busy on purpose: what is kept as final beside others, held against the quiet times.

Each operator is compiled into an empty cache while nothing else runs, twice (how far two quiet rankings agree is what a
busy one can be asked for), then beside two programs that never rest, and beside two that take bursts of 5 ms. All four
are timed by the same steps: a kernel that is timed again and again finds its data in the caches, one that takes turns
with nine others does not. A time that is kept as final must be within 25 % of the quiet one, and a ranking that is not
refused must agree with it.

    python -m benchmarks.busy --strict --json busy.json
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated

import numpy as np
import typer

import roller
from benchmarks.common import JsonOption, Verdict, check_outputs, screen, table, write_json
from benchmarks.disturbed import beside
from roller.compiler.compiled_kernel import CompiledKernel
from roller.runtime.cache import KernelCache
from roller_runtime.timing.clock import TRUSTED, SystemClock
from roller_runtime.timing.disturbance import observe_machine

#: How far a final time may be off (relative), and how far rankings must agree.
OFF, AGREEMENT = 0.25, 0.8
#: Candidates of each operator.
CANDIDATES = 10
#: Programs that disturb, by pattern: two of each run.
PATTERNS = {
    "spinning": "while True: pass",
    "bursts of 5 ms": "import random, time\nwhile True:\n e = time.perf_counter() + 5e-3\n"
    " while time.perf_counter() < e: pass\n time.sleep(random.uniform(5e-3, 15e-3))",
}
OPERATORS = (
    "matmul(m=128, n=128, k=128)",
    "matmul(m=512, n=512, k=512)",
    "matmul(m=1024, n=1024, k=1024)",
    "elementwise('relu', (1048576,))",
    "reduce('sum', (512, 1024), (1,))",
    "softmax((512, 512))",
    "conv2d(1, 64, 28, 28, 64, 3, 3, padding=1)",
)


@dataclass(frozen=True)
class Case:
    """One operator beside one pattern.

    Parameters
    ----------
    operator, pattern
        What, beside what.
    final
        Whether the cache keeps it as final.
    doubt
        Why it does not.
    off
        By how much the chosen kernel's time differs from its own quiet one, relative.
    worst
        The same of the worst candidate that counts as measured; ``None`` where none does.
    rank, again
        Rank correlation with the quiet times: of this ranking (``None`` where it was refused), and of a second quiet
        one.
    lost
        By how much the chosen kernel is slower, quiet, than the best of the ten.
    """

    operator: str
    pattern: str
    final: bool
    doubt: str
    off: float
    worst: float | None
    rank: float | None
    again: float
    lost: float


def main(
    only: Annotated[str, typer.Option("--filter", help="Part of an operator's text; all by default.")] = "",
    force: Annotated[bool, typer.Option("--force", help="Go on where the machine is not quiet to begin with.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit 1 where a limit is missed.")] = False,
    json_path: JsonOption = None,
) -> None:
    """Time quiet, then beside others, and print how far apart they are."""
    check_outputs(json_path)
    os.environ.pop(TRUSTED, None)
    others = str(observe_machine(SystemClock(), 2.0))
    if others and not force:
        raise typer.BadParameter(f"expected a quiet machine, but {others}. Stop that, or add --force.")
    out, cases = screen(), list[Case]()
    for text in (o for o in OPERATORS if only in o):
        quiet, again = quiet_times(text, force), quiet_times(text, force)
        for pattern, code in PATTERNS.items():
            with disturbed(code):
                kernel, final = compiled(text)
            cases.append(case_of(text, pattern, kernel, final, quiet, again))
            out.print(f"{text} beside {pattern}: {'final' if final else f'doubtful: {kernel.doubt}'}", soft_wrap=True)
    out.print(table("Beside two programs, against the quiet times", COLUMNS, map(cells, cases)))
    verdicts = judged(cases)
    for v in verdicts:
        out.print(f"{v.name}: {v.value} (limit: {v.limit}): {v.word}", soft_wrap=True)
    write_json(json_path, {"quiet_machine": not others, "others": others, "cases": [asdict(c) for c in cases]})
    if strict and any(v.holds is False for v in verdicts):
        raise typer.Exit(1)


@contextlib.contextmanager
def disturbed(code: str) -> Iterator[None]:
    """Run two programs beside the block."""
    with beside(code), beside(code):
        yield


def quiet_times(text: str, force: bool = False) -> dict[str, float]:
    """Return the times of all candidates by id, the short look at one that was dropped included.

    Raises
    ------
    typer.BadParameter
        Where one of them is doubtful: nothing can be held against it.
    """
    kernel, _ = compiled(text)
    if kernel.doubt and not force:
        raise typer.BadParameter(f"{text}: expected quiet times, but {kernel.doubt}. Wait, or add --force.")
    return {c.id: c.measured_s for c in kernel.candidates if c.measured_s is not None}


def compiled(text: str) -> tuple[CompiledKernel, bool]:
    """Compile into an empty cache; return the kernel, and whether the next compile would take it from there."""
    folder = tempfile.mkdtemp(prefix="busy-")
    before = os.environ.get("ROLLER_CACHE_DIR")
    os.environ["ROLLER_CACHE_DIR"] = folder
    try:
        kernel = roller.compile(roller.ops.parse(text), "cpu", top_k=CANDIDATES)
        return kernel, any(row.measured for row in KernelCache().rows())
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if before is None:
            del os.environ["ROLLER_CACHE_DIR"]
        else:
            os.environ["ROLLER_CACHE_DIR"] = before


def case_of(
    text: str, pattern: str, kernel: CompiledKernel, final: bool, quiet: Mapping[str, float], again: Mapping[str, float]
) -> Case:
    """Hold what was compiled against the quiet times."""
    chosen = next(c for c in kernel.candidates if c.program == kernel.program)
    offs = {c.id: abs(c.measured_s / quiet[c.id] - 1) for c in kernel.candidates
            if c.status == "measured" and c.measured_s is not None and c.id in quiet}  # fmt: skip
    ranked = {c.id: c.measured_s for c in kernel.candidates if c.measured_s is not None and c.id in quiet}
    refused = bool(kernel.ranking_refused) or len(ranked) < 2
    rank = None if refused else correlation([quiet[i] for i in ranked], list(ranked.values()))
    both = [i for i in quiet if i in again]
    reference = quiet.get(chosen.id, float("nan"))
    off = abs((chosen.measured_s or float("nan")) / reference - 1)
    lost = reference / min(quiet.values()) - 1
    repeated = correlation([quiet[i] for i in both], [again[i] for i in both])
    return Case(text, pattern, final, kernel.doubt, off, max(offs.values(), default=None), rank, repeated, lost)


def correlation(one: Sequence[float], other: Sequence[float]) -> float:
    """Return Spearman's rank correlation.

    Examples
    --------
    >>> correlation([1.0, 2.0, 3.0], [10.0, 20.0, 30.0]), correlation([1.0, 2.0, 3.0], [3.0, 2.0, 1.0])
    (1.0, -1.0)
    """
    a, b = (np.argsort(np.argsort(x)).astype(float) for x in (one, other))
    return round(float(np.corrcoef(a, b)[0, 1]), 6)


def judged(cases: Sequence[Case]) -> list[Verdict]:
    """Return whether the limits hold."""
    finals = [c.off for c in cases if c.final] + [c.worst for c in cases if c.final and c.worst is not None]
    ranks = [c.rank for c in cases if c.rank is not None]
    worst, least = max(finals, default=None), min(ranks, default=None)
    doubtful = sum(not c.final for c in cases)
    return [
        Verdict("worst final time against the quiet one", f"{OFF:.0%}", _percent(worst),
                None if worst is None else worst <= OFF),
        Verdict("lowest rank correlation of what was not refused", f"{AGREEMENT:g}", _number(least),
                None if least is None else least >= AGREEMENT),
        Verdict("doubtful, and not kept as final", "no limit", f"{doubtful} of {len(cases)}", None),
    ]  # fmt: skip


COLUMNS = ("operator", "beside", "kept", "chosen off", "worst off", "rank", "quiet again", "lost")


def cells(c: Case) -> list[str]:
    """Return a row of the table."""
    rank = "refused" if c.rank is None else _number(c.rank)
    kept = "final" if c.final else "doubtful"
    return [c.operator, c.pattern, kept, _percent(c.off), _percent(c.worst), rank, _number(c.again), _percent(c.lost)]


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


if __name__ == "__main__":
    typer.run(main)
