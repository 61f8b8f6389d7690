"""Draw cases, have them judged, shrink what is found, and keep it: the loop behind the command and the tests."""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.fuzz.cases import LIMITS, Enough, examined
from tests.fuzz.verdict import NOT_DRAWN, Verdict
from tests.fuzz.worker import Worker

CORPUS = Path(__file__).parent / "corpus"
#: Cases that are run to make a finding smaller.
_MOST_SHRINKS = 25
#: Seconds after which a finding is kept as it is.
_MOST_SHRINK_S = 10.0


class Findings:
    """What was found: a smallest case per signature, and how often each verdict was given."""

    def __init__(self) -> None:
        self.verdicts: Counter[str] = Counter()
        self.signatures: Counter[str] = Counter()
        self.cases: dict[str, tuple[Any, Verdict]] = {}
        self.refusals: Counter[str] = Counter()

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data."""
        cases = {s: {"case": c, "verdict": v.to_dict()} for s, (c, v) in self.cases.items()}
        counts = {"verdicts": self.verdicts, "signatures": self.signatures, "refusals": self.refusals}
        return {**{k: dict(v) for k, v in counts.items()}, "cases": cases}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Findings:
        """Return what :meth:`to_dict` gave."""
        out = cls()
        for name in ("verdicts", "signatures", "refusals"):
            getattr(out, name).update(data[name])
        out.cases = {s: (c["case"], Verdict(**c["verdict"])) for s, c in data["cases"].items()}
        return out


def explore(
    worker: Worker, generator: str, numbers: range, seed: int, limits: str = "usual", known: Findings | None = None
) -> Iterator[Findings]:
    """Judge the cases of ``numbers``; yield what was found so far after each.

    A finding whose signature is new is made smaller; of the others only the count is kept.
    """
    found = known if known is not None else Findings()
    for number in numbers:
        _one(worker, generator, number, seed, limits, found)
        yield found


def _one(worker: Worker, generator: str, number: int, seed: int, limits: str, found: Findings) -> None:
    verdicts: dict[str, Verdict] = {}
    wanted: list[str] = []
    drawn: list[str] = []
    since: list[float] = []

    def fails(case: Any) -> bool:
        key = json.dumps(case, sort_keys=True)
        if key in _SIMPLEST.setdefault((generator, limits), {key}) and number and not wanted:
            return False  # the simplest case comes first in every run, and is judged once
        if key not in verdicts:
            # Only a finding is ever left as it is: however long drawing took, the case that was drawn is judged.
            if wanted and (len(verdicts) > _MOST_SHRINKS or time.monotonic() > since[0] + _MOST_SHRINK_S):
                raise Enough
            verdicts[key] = worker.judge(case)
        verdict = verdicts[key]
        drawn.append(key)
        if verdict.fine:
            return False
        if not wanted and verdict.signature not in found.signatures:
            wanted.append(verdict.signature)
            since.append(time.monotonic())
        return verdict.signature in wanted

    smallest = examined(generator, LIMITS[limits], number, seed, fails, shrink=True)
    if not drawn:  # Hypothesis drew nothing, or the simplest case again: counted, so that no case is lost unseen
        found.verdicts[NOT_DRAWN] += 1
    for key in list(dict.fromkeys(drawn))[: 2 if number == 0 else 1]:
        verdict = verdicts[key]
        found.verdicts[verdict.kind] += 1
        if not verdict.fine:
            found.signatures[verdict.signature] += 1
        if verdict.kind == "refused":
            found.refusals[verdict.signature] += 1
    if smallest is not None:
        found.cases[wanted[0]] = smallest, verdicts[json.dumps(smallest, sort_keys=True)]


#: The simplest case of a generator, which every draw begins with.
_SIMPLEST: dict[tuple[str, str], set[str]] = {}


def name_of(case: Any) -> str:
    """Return the name of a case's file."""
    digest = hashlib.sha256(json.dumps(case, sort_keys=True).encode()).hexdigest()[:10]
    return f"{case['generator']}-{digest}"


def keep(case: Any, about: str, folder: Path = CORPUS) -> Path:
    """Write a case as a file of the corpus; ``about`` says what it showed."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name_of(case)}.json"
    path.write_text(json.dumps({"about": about, "case": case}) + "\n")
    return path


def corpus() -> list[Path]:
    """Return the files of the corpus."""
    return sorted(CORPUS.glob("*.json"))
