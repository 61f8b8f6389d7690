"""Writes ``docs/onnx-operators.md``: the ONNX operators roller takes, and ONNX's own tests it passes or refuses.

``python docs/onnx_operators.py`` writes it; ``tests/models/onnx/test_backend.py`` checks it. Operators come from the
registry of lowerings, versions from the onnx package, verdicts from ``benchmarks/onnx_coverage.py``.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import onnx

import roller.models.onnx.operators
import roller.models.onnx.runtime_operators  # noqa: F401 - both fill their registries
from benchmarks.onnx_coverage import EXCEPTED, PASSED, REFUSED, WRONG, Verdict, verdicts
from roller.models.onnx.legacy_opsets import OLDEST
from roller.models.onnx.lowering_registry import LOWERINGS
from roller.models.onnx.runtime_operators.rewrites import REWRITES

PATH = Path(__file__).with_name("onnx-operators.md")

HEAD = f"""# ONNX operators

`python docs/onnx_operators.py` generates this page; a test keeps it current. Roller reads operator sets 1 to the newest
of the onnx package; it converts sets before {OLDEST} to set {OLDEST}. It reads the listed operators of ONNX Runtime's
domain as the equivalent ONNX operators. It refuses a model with any other operator before compiling anything, and
lists all unsupported nodes with the reasons; `fallback="onnxruntime"` leaves those nodes to ONNX Runtime.

"""


def document(found: Sequence[Verdict]) -> str:
    """Return the document for the verdicts on all tests."""
    refused = [v for v in found if v.outcome == REFUSED]
    return HEAD + _counts(found) + _operators(found) + _runtimes() + _refusals(refused) + _exceptions(found)


def _counts(found: Sequence[Verdict]) -> str:
    how = (
        "The tests read, lower and partition each model, and compute its kernels by their definition in NumPy. "
        "`python -m benchmarks.onnx_coverage` compiles and runs them all."
    )
    rows = ["## Node tests of `onnx.backend.test`", "", how, ""]
    rows += ["| tests | all | passed | refused | not as specified | wrong |", "|---|---|---|---|---|---|"]
    for label, some in (("all", found), ("with a float32 input or output", [v for v in found if v.float32])):
        counts = [sum(v.outcome == o for v in some) for o in (PASSED, REFUSED, EXCEPTED, WRONG)]
        rows.append(f"| {label} | {len(some)} | {' | '.join(str(c) for c in counts)} |")
    return "\n".join(rows) + "\n\n"


def _operators(found: Sequence[Verdict]) -> str:
    tested: dict[str, list[Verdict]] = defaultdict(list)
    for v in found:
        tested[v.operator].append(v)
    rows = ["## Operators", "", "| operator | versions | tests passed |", "|---|---|---|"]
    for domain, op in sorted(LOWERINGS):
        of = tested.get(op, [])
        share = f"{sum(v.outcome == PASSED for v in of)} of {len(of)}" if of else "no tests"
        rows.append(f"| {domain + '.' if domain else ''}{op} | {_versions(domain, op)} | {share} |")
    return "\n".join(rows) + "\n\n"


def _runtimes() -> str:
    names = sorted(f"{domain}.{op}" if domain else op for domain, op in REWRITES)
    return "## Operators of ONNX Runtime, read as ONNX operators\n\n" + ", ".join(names) + ".\n\n"


def _versions(domain: str, op: str) -> str:
    since = sorted(
        {s.since_version for s in onnx.defs.get_all_schemas_with_history() if (s.domain, s.name) == (domain, op)}
    )
    usable = [v for i, v in enumerate(since) if v >= OLDEST or i == len(since) - 1 or since[i + 1] > OLDEST]
    return ", ".join(str(v) for v in usable) or "own domain"


def _refusals(refused: Iterable[Verdict]) -> str:
    reasons: dict[str, list[str]] = defaultdict(list)
    for v in refused:
        reasons[v.reason].append(v.name.removeprefix("test_"))
    rows = ["## Refused tests", "", "| tests | reason | names |", "|---|---|---|"]
    for reason, names in sorted(reasons.items(), key=lambda r: (-len(r[1]), r[0])):
        rows.append(f"| {len(names)} | {reason.replace('|', '/')} | {', '.join(names)} |")
    return "\n".join(rows) + "\n"


def _exceptions(found: Sequence[Verdict]) -> str:
    rows = ["", "## Tests that contradict the specification", "", "| test | text of the specification |", "|---|---|"]
    rows += [f"| {v.name.removeprefix('test_')} | {v.reason} |" for v in found if v.outcome == EXCEPTED]
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    PATH.write_text(document(list(verdicts(evaluated=True))))
