"""Every operator of PyTorch's database through the backend: ``python -m benchmarks.torch_audit``.

All samples of an operator and dtype are exported and evaluated by definition, and held to PyTorch with float64 as the
judge; with ``--compile`` one sample of them is compiled and called, too. The state is written after every operator,
so that a run that is stopped goes on where it was.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from benchmarks.torch_audit import judge, report
from benchmarks.torch_audit.samples import DTYPES, dtypes_of, name_of, operators
from roller_runtime.core.files import write_atomically

RESULTS = Path(__file__).parents[1] / "results"


def main(
    resume: Annotated[Path, typer.Option(help="State of a run, to go on with.")] = RESULTS / "torch_operators.json",
    ops: Annotated[str, typer.Option(help="Operators, by commas: tried again where they have been.")] = "",
    dtypes: Annotated[str, typer.Option(help="Dtypes, by commas.")] = ",".join(DTYPES),
    minutes: Annotated[float, typer.Option(min=0, help="Begin no operator after so many.")] = 600.0,
    most: Annotated[int, typer.Option(min=1, help="Samples of an operator and dtype.")] = 48,
    compiling: Annotated[bool, typer.Option("--compile", help="Compile one sample of each, too.")] = False,
    page: Annotated[Path | None, typer.Option(help="Where the table goes; beside the state by default.")] = None,
) -> None:
    """Judge operators that are not in the state, write it and its page."""
    torch.set_num_threads(1)
    state: dict[str, Any] = json.loads(resume.read_text()) if resume.exists() else {}
    verdicts = state.setdefault("verdicts", {})
    wanted, began = [n for n in ops.split(",") if n], judge.now()
    known = operators()
    if wanted:
        known.sort(key=lambda info: wanted.index(name_of(info)) if name_of(info) in wanted else len(wanted))
    state.update(torch=torch.__version__, operators=sorted({name_of(i) for i in known}), most=most)
    for dtype in dtypes.split(","):
        for info in known:
            name = name_of(info)
            key = f"{name} {dtype}"
            if dtype not in dtypes_of(info) or (name not in wanted if wanted else _done(verdicts.get(key), compiling)):
                continue
            if judge.now() - began > 60 * minutes:
                break
            # Written first: an operator that ends the process is not begun again.
            verdicts[key] = {"note": "ended the process"}
            _write(resume, state)
            verdict = judge.judged(info, dtype, most=most, compiling=compiling)
            verdicts[key] = verdict.plain()
            _tell(key, verdict)
    _write(resume, state)
    (page or resume.with_suffix(".md")).write_text(report.page(state))


def _done(verdict: dict[str, Any] | None, compiling: bool) -> bool:
    if verdict is None:
        return False
    return not compiling or not verdict.get("taken") or bool(verdict.get("compiled"))


def _write(path: Path, state: dict[str, Any]) -> None:
    with write_atomically(path) as file:
        file.write((json.dumps(state, indent=0, sort_keys=True) + "\n").encode())


def _tell(key: str, verdict: judge.Verdict) -> None:
    words = [f"{verdict.taken}/{verdict.tried} taken"]
    words += [f"left: {reason}" for reason in verdict.left]
    words += [f"DIFFERS at {n}: {how}" for n, how in verdict.differs.items()]
    words += [verdict.note] if verdict.note else []
    words += [f"compiled: {verdict.compiled}"] if verdict.compiled else []
    sys.stdout.write(f"{key}: {'; '.join(words)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    typer.run(main)
