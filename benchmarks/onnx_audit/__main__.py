"""``python -m benchmarks.onnx_audit``: judge all operators of all operator sets and write the list."""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import onnx

import roller
import roller.onnx.operators
from benchmarks.onnx_audit.cases import cases_of, versions
from benchmarks.onnx_audit.judging import DIFFERS, OUTCOMES, SAME, judged
from benchmarks.onnx_audit.report import PATH, document
from roller.onnx.lowering import LOWERINGS

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
        for path in sorted(folder.rglob("*.py")):
            held.update(path.read_bytes())
    return held.hexdigest()[:16]


def row_of(operator: str, version: int, most: int, compiled: bool) -> dict[str, Any]:
    """Judge one version of an operator; of the newest one a case is compiled, too."""
    counts, told, sample = dict.fromkeys(OUTCOMES, 0), dict[str, dict[str, str]](), None
    for case in cases_of(operator, version, most):
        found = judged(case)
        counts[found.kind] += 1
        if found.kind == SAME:
            sample = sample or case
        else:
            told.setdefault(found.kind, {}).setdefault(found.reason, found.about)
    row = {"operator": operator, "version": version, "counts": counts, "told": told, "compiled": ""}
    if compiled and sample is not None and version == versions()[operator][-1]:
        verdict = judged(sample, compiled=True)
        row["compiled"] = verdict.kind
        if verdict.kind == DIFFERS:
            counts[DIFFERS] += 1
            told.setdefault(DIFFERS, {}).setdefault(f"compiled: {verdict.reason}", verdict.about)
    return row


def rows(wanted: Sequence[str], most: int, compiled: bool, state: Path, fresh: bool) -> Iterator[dict[str, Any]]:
    """Yield a row per version of every operator; those that were judged before come from the file."""
    mark, known = [fingerprint(), most, compiled], dict[tuple[str, int], dict[str, Any]]()
    if state.exists() and not fresh:
        for line in state.read_text().splitlines():
            row = json.loads(line)
            if row["mark"] == mark:
                known[row["operator"], row["version"]] = row
    state.parent.mkdir(parents=True, exist_ok=True)
    with state.open("w" if fresh else "a") as out:
        for operator in wanted:
            for version in versions()[operator]:
                row = known.get((operator, version))
                if row is None:
                    row = row_of(operator, version, most, compiled) | {"mark": mark}
                    print(json.dumps(row), file=out, flush=True)
                yield row


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
    for row in rows(wanted, options.most, not options.evaluate, options.state, options.fresh):
        found.append(row)
        for kind, reasons in row["told"].items():
            if kind == DIFFERS or options.verbose:
                for reason, about in reasons.items():
                    print(f"{kind:8} {row['operator']}-{row['version']} {about}: {reason}", flush=True)
    totals = {o: sum(r["counts"][o] for r in found) for o in OUTCOMES}
    print(f"{len(found)} versions of {len(wanted)} operators: {totals}, {time.perf_counter() - began:.0f} s")
    if not options.operators:
        PATH.write_text(document(found))
    return int(totals[DIFFERS] > 0)


if __name__ == "__main__":
    sys.exit(main())
