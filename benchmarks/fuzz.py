"""Random cases against a judge of their own.

    python -m benchmarks.fuzz expressions --cases 5000 --seed 0 [--minutes M] [--jobs N] [--limits quick|usual|wide]

Generators: ``expressions`` (of a user, on this processor), ``operators`` (ready ones, hostile arguments too), ``gpu``
(kernels for every shipped GPU, on the emulator), ``calls`` (compiled kernels and whatever a caller may pass), ``onnx``
(small models). A run is resumed where it stopped; each finding is made smaller and written beside the journal, as a
file that ``tests/fuzz/corpus`` takes as it is. ``tests/fuzz`` holds the generators, the judges, and what runs in
``make test``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

from roller_runtime.core.files import write_atomically
from tests.fuzz.cases import GENERATORS, LIMITS, strategy
from tests.fuzz.run import Findings, explore, keep
from tests.fuzz.worker import Worker


def main() -> int:
    given = _arguments()
    folder = Path(given.out) / f"{given.generator}-{given.limits}-{given.seed}"
    if given.jobs > 1:
        shards = [
            subprocess.Popen([sys.executable, "-m", "benchmarks.fuzz", *_shard(given, n)]) for n in range(given.jobs)
        ]
        for s in shards:
            s.wait()
    else:
        _run(given, folder)
    return _table(folder)


def _arguments() -> argparse.Namespace:
    strategy("expressions", LIMITS["quick"])  # registers all
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fuzz", description=__doc__)
    parser.add_argument("generator", choices=sorted(GENERATORS))
    parser.add_argument("--cases", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop after so many, to be resumed")
    parser.add_argument("--jobs", type=int, default=1, help="processes that share the cases")
    parser.add_argument("--limits", choices=sorted(LIMITS), default="usual", help="how large a case may be")
    parser.add_argument("--out", default="fuzz-out", help="folder of the journals and findings")
    parser.add_argument("--shard", default="0/1", help=argparse.SUPPRESS)
    return parser.parse_args()


def _shard(given: argparse.Namespace, n: int) -> list[str]:
    return [
        given.generator,
        "--cases",
        str(given.cases),
        "--seed",
        str(given.seed),
        "--minutes",
        str(given.minutes),
        "--limits",
        given.limits,
        "--out",
        given.out,
        "--shard",
        f"{n}/{given.jobs}",
    ]


def _run(given: argparse.Namespace, folder: Path) -> None:
    part, of = map(int, given.shard.split("/"))
    folder.mkdir(parents=True, exist_ok=True)
    journal = folder / f"journal-{part}-of-{of}.json"
    found, first = Findings(), part
    if journal.exists():
        before = json.loads(journal.read_text())
        found, first = Findings.from_dict(before["findings"]), before["next"]
    numbers, end, told = range(first, given.cases, of), time.monotonic() + 60 * given.minutes, 0.0
    with Worker(folder / f"work-{part}") as worker:
        for number, _ in zip(
            numbers, explore(worker, given.generator, numbers, given.seed, given.limits, found), strict=True
        ):
            with write_atomically(journal) as file:
                file.write(json.dumps({"next": number + of, "findings": found.to_dict()}).encode())
            if time.monotonic() - told > 20:
                told = time.monotonic()
                print(f"{number + 1} of {given.cases}: {dict(found.verdicts)}", flush=True)
            if time.monotonic() > end:
                return


def _table(folder: Path) -> int:
    """Print the verdicts of all parts of a run, write its findings, and return whether there are any."""
    total = Findings()
    for journal in sorted(folder.glob("journal-*.json")):
        one = Findings.from_dict(json.loads(journal.read_text())["findings"])
        total.verdicts += one.verdicts
        total.signatures += one.signatures
        total.refusals += one.refusals
        total.cases = one.cases | total.cases
    print("\n| verdict | cases |\n|---|---|")
    for kind, count in total.verdicts.most_common():
        print(f"| {kind} | {count} |")
    for text, count in total.refusals.most_common(12):
        print(f"  {count:5d} {text}")
    for signature, (case, verdict) in total.cases.items():
        path = keep(case, f"{verdict.kind}: {verdict.message[:200]}", folder / "found")
        print(f"\n{total.signatures[signature]} x {verdict.kind}: {verdict.message[:400]}\n  {path}")
    return int(bool(total.cases))


if __name__ == "__main__":
    raise SystemExit(main())
