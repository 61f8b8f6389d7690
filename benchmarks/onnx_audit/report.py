"""The list of all operators as a page."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx

from benchmarks.onnx_audit.exceptions import EXCEPTIONS
from benchmarks.onnx_audit.judging import DIFFERS, EXCEPTED, OUTCOMES, REFUSED, UNJUDGED

PATH = Path(__file__).resolve().parents[2] / "docs" / "results" / "onnx-operators.md"

HEAD = """# ONNX operators against their specification

`python -m benchmarks.onnx_audit`, which is resumable, writes this page. It tries every operator of ONNX's own domain
that Roller reads, in every version, on onnx's node tests in the form of that version and on variations of their
attributes, dtypes and shapes. It reads and lowers each case, computes it by the definition of its kernels, and
compares it with onnx's reference, or with ONNX Runtime if the reference has no result. For the newest version, it
also compiles and runs one case. In *excepted* cases, the reference contradicts the specification; the page lists these
cases with the text of the specification. *Unjudged* are random results, and results that neither of the two computes.

"""


def document(rows: Sequence[dict[str, Any]]) -> str:
    """Return the page for the rows of all operators, judged and compiled."""
    built = {(r["operator"], r["version"]): r for r in rows if "compiled" in r}
    differing = [r | {"told": {DIFFERS: {r["reason"]: ""}}} for r in built.values() if r["compiled"] == DIFFERS]
    rows = [r for r in rows if "counts" in r]
    totals = [sum(r["counts"][o] for r in rows) for o in OUTCOMES]
    judged = f"{len({r['operator'] for r in rows})} operators, {len(rows)} versions, {sum(totals)} cases"
    out = [f"onnx {onnx.__version__}, operator sets 1 to {onnx.defs.onnx_opset_version()}: {judged}.", ""]
    heads = ("operator", "version", *OUTCOMES, "compiled")
    out += [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads), f"| all | | {' | '.join(map(str, totals))} | |"]

    def made(r: dict[str, Any]) -> str:
        return str(built.get((r["operator"], r["version"]), {}).get("compiled", ""))

    for r in rows:
        counts = " | ".join(str(r["counts"][o]) for o in OUTCOMES)
        out.append(f"| {r['operator']} | {r['version']} | {counts} | {made(r)} |")
    out += ["", *_differences([*rows, *differing]), *_exceptions(rows), *_refusals(rows), *_unjudged(rows)]
    return HEAD + "\n".join(out).rstrip() + "\n"


def _told(rows: Sequence[dict[str, Any]], kind: str) -> dict[str, list[str]]:
    """Return the versions of operators that a reason was told for, by the reason."""
    found: dict[str, list[str]] = defaultdict(list)
    for r in rows:
        for reason in r["told"].get(kind, {}):
            said = reason.removeprefix(f"{r['operator']}: ")
            found[" ".join(said.split()).replace("|", "/")].append(f"{r['operator']}-{r['version']}")
    return found


def _differences(rows: Sequence[dict[str, Any]]) -> list[str]:
    found = _told(rows, DIFFERS)
    lines = [f"| {', '.join(of)} | {reason} |" for reason, of in found.items()]
    return ["## What differs", "", *(["| operator | how |", "|---|---|", *lines] if lines else ["Nothing."]), ""]


def _exceptions(rows: Sequence[dict[str, Any]]) -> list[str]:
    found = _told(rows, EXCEPTED)
    order = [e.clause for e in EXCEPTIONS]
    listed = sorted(found.items(), key=lambda f: order.index(f[0]) if f[0] in order else len(order))
    lines = [f"| {', '.join(of)} | {reason} |" for reason, of in listed]
    return [
        "## Where the reference is not what the specification says",
        "",
        "| operator | why |",
        "|---|---|",
        *lines,
        "",
    ]


def _refusals(rows: Sequence[dict[str, Any]]) -> list[str]:
    found = _told(rows, REFUSED)
    lines = [
        f"| {reason} | {', '.join(of)} |" for reason, of in sorted(found.items(), key=lambda f: (-len(f[1]), f[0]))
    ]
    return ["## What is refused", "", "| reason | operators |", "|---|---|", *lines, ""]


def _unjudged(rows: Sequence[dict[str, Any]]) -> list[str]:
    lines = [f"| {reason} | {', '.join(of)} |" for reason, of in _told(rows, UNJUDGED).items()]
    empty = [f"{r['operator']}-{r['version']}" for r in rows if not sum(r["counts"].values())]
    if empty:
        lines.append(f"| onnx has no node test that this version could say | {', '.join(empty)} |")
    return ["## What is not judged", "", "| reason | operators |", "|---|---|", *lines]
