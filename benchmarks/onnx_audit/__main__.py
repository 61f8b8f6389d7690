"""``python -m benchmarks.onnx_audit``: judge all operators of all operator sets and write the list."""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import onnx

import roller
import roller.models.onnx.operators
from benchmarks.onnx_audit.cases import cases_of, versions
from benchmarks.onnx_audit.judging import DIFFERS, OUTCOMES, SAME, judged
from benchmarks.onnx_audit.report import PATH, document
from roller.models.onnx.lowering_registry import LOWERINGS

ROOT = Path(__file__).resolve().parents[2]
#: What was judged so far, a line per version of an operator.
STATE = ROOT / "build" / "onnx-audit.jsonl"


def operators() -> list[str]:
    """Return the operators of ONNX's own domain that the reader takes: lowered, or defined by others that are."""
    defined = {s.name for s in onnx.defs.get_all_schemas_with_history()
               if not s.domain and (s.has_function or s.has_context_dependent_function)}  # fmt: skip
    known = {op for domain, op in LOWERINGS if not domain} | defined
    return sorted(known & versions().keys())


def fingerprint() -> str:
    """Return what tells this state of roller, of the audit and of onnx from others."""
    held = hashlib.sha256(onnx.__version__.encode())
    for folder in (Path(roller.__file__).parent, Path(__file__).parent):
        for path in sorted(set(folder.rglob("*.py")) - {Path(__file__).with_name("report.py")}):
            held.update(path.read_bytes())
    return held.hexdigest()[:16]


def row_of(operator: str, version: int, most: int) -> dict[str, Any]:
    """Judge one version of an operator, kernels computed by their definition."""
    counts, told = dict.fromkeys(OUTCOMES, 0), dict[str, dict[str, str]]()
    for case in cases_of(operator, version, most):
        found = judged(case)
        counts[found.kind] += 1
        if found.kind != SAME:
            told.setdefault(found.kind, {}).setdefault(found.reason, found.about)
    return {"operator": operator, "version": version, "counts": counts, "told": told}


def compiled(operator: str, version: int, most: int) -> dict[str, Any]:
    """Compile the first case of an operator that agrees by definition, and judge what runs."""
    sample = next((c for c in cases_of(operator, version, most) if judged(c).kind == SAME), None)
    found = None if sample is None else judged(sample, compiled=True)
    kind, reason = ("none", "") if found is None else (found.kind, f"{found.about}, compiled: {found.reason}")
    return {"operator": operator, "version": version, "compiled": kind, "reason": reason}


class State:
    """What was judged before, and goes into a file line by line.

    Parameters
    ----------
    path
        The file.
    most
        How many variations there are: another number makes other cases.
    fresh
        Whether to forget what it holds.
    """

    def __init__(self, path: Path, most: int, fresh: bool) -> None:
        self._path, self._mark = path, [fingerprint(), most]
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = path.read_text().splitlines() if path.exists() and not fresh else []
        self._known = {self._key(r): r for r in map(json.loads, lines) if r["mark"] == self._mark}
        path.write_text("".join(json.dumps(r) + "\n" for r in self._known.values()))

    @staticmethod
    def _key(row: dict[str, Any]) -> tuple[str, int, bool]:
        return row["operator"], row["version"], "compiled" in row

    def row(self, make: Callable[[str, int, int], dict[str, Any]], operator: str, version: int) -> dict[str, Any]:
        """Return the row that ``make`` makes of an operator, or made before."""
        key = operator, version, make is compiled
        if key not in self._known:
            self._known[key] = made = make(operator, version, self._mark[1]) | {"mark": self._mark}
            with self._path.open("a") as out:
                print(json.dumps(made), file=out)
        return self._known[key]


def rows(wanted: Sequence[str], state: State, evaluate: bool) -> Iterator[dict[str, Any]]:
    """Yield a row per version of every operator, then those of the newest ones that were compiled."""
    for operator in wanted:
        for version in versions()[operator]:
            yield state.row(row_of, operator, version)
    for operator in () if evaluate else wanted:
        yield state.row(compiled, operator, versions()[operator][-1])


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge, print what differs, and write the list where all operators were judged."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.onnx_audit", description=__doc__)
    parser.add_argument("--operators", default="", help="only these, by comma; nothing is written")
    parser.add_argument("--most", type=int, default=12, help="variations of each version of an operator")
    parser.add_argument("--evaluate", action="store_true", help="compile nothing")
    parser.add_argument("--fresh", action="store_true", help="forget what was judged before")
    parser.add_argument("--state", type=Path, default=STATE, help="where it goes on")
    parser.add_argument("--verbose", action="store_true", help="print what was refused, too")
    options = parser.parse_args(arguments)
    wanted = options.operators.split(",") if options.operators else operators()
    began, found = time.perf_counter(), list[dict[str, Any]]()
    for row in rows(wanted, State(options.state, options.most, options.fresh), options.evaluate):
        found.append(row)
        for kind, reason, about in _said(row):
            if kind == DIFFERS or options.verbose:
                print(f"{kind:8} {row['operator']}-{row['version']} {about}: {reason}", flush=True)
    judged_rows = [r for r in found if "counts" in r]
    totals = {o: sum(r["counts"][o] for r in judged_rows) for o in OUTCOMES}
    wrong = totals[DIFFERS] + sum(r.get("compiled") == DIFFERS for r in found)
    print(f"{len(judged_rows)} versions of {len(wanted)} operators: {totals}, {time.perf_counter() - began:.0f} s")
    if not options.operators:
        PATH.write_text(document(found))
    return int(wrong > 0)


def _said(row: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield what became of the cases of a row that are not the same: kind, reason, and the first such case."""
    for kind, reasons in row.get("told", {}).items():
        yield from ((kind, reason, about) for reason, about in reasons.items())
    if row.get("compiled", SAME) not in (SAME, "none"):
        yield row["compiled"], row["reason"], "compiled"


if __name__ == "__main__":
    sys.exit(main())
