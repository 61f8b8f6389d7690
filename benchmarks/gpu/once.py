"""Run one kernel of a bundle a few times, for a profiler: ``ncu --set full python benchmarks/gpu/once.py b/ M3``.

Without ``--json`` it is the first candidate of the operator, with the results of a run the fastest correct one. Needs
Python, NumPy and CuPy. Data is uniform random; nothing is checked or timed here.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from roller.artifact import Argument, KernelArtifact
from roller.backends.build import build
from roller.backends.cuda.module import Module, cupy
from roller.errors import ArtifactError, RollerError
from roller.runtime.bundle_format import Bundle


def chosen(folder: Path, operator: str, results: Path | None) -> KernelArtifact:
    """Return the kernel to run: the fastest of earlier results, or the first candidate.

    Raises
    ------
    ArtifactError
        Where the bundle or the results have no such operator.
    """
    bundle = Bundle(folder)
    entry = next((e for e in bundle.operators if e.id == operator), None)
    if entry is None:
        known = ", ".join(e.id for e in bundle.operators[:20])
        raise ArtifactError(f"{folder}: expected operator '{operator}', found {known} ... Use one of the bundle's ids.")
    candidates = dict(bundle.load(entry))
    if results is None:
        return next(iter(candidates.values()))
    try:
        best = {o["id"]: o["best"] for o in json.loads(results.read_text(encoding="utf-8"))["operators"]}[operator]
        return candidates[best]
    except (OSError, KeyError, TypeError, ValueError) as err:
        raise ArtifactError(f"{results}: expected the best candidate of {operator} in it, got {err!r}.") from err


def contents(cp: Any, argument: Argument) -> Any:
    """Return device memory of one argument, inputs filled at random; bfloat16 as the bits of small numbers."""
    n = 1
    for extent in argument.shape:
        n *= extent
    if argument.dtype == "bfloat16":
        return cp.random.randint(0x3D00, 0x3F80, n, dtype=cp.uint16)
    dtype = cp.dtype(argument.dtype)
    if argument.role in ("output", "workspace"):
        return cp.empty(n, dtype)
    if dtype.kind in "iub":
        return cp.random.randint(-100 if dtype.kind == "i" else 0, 100, n).astype(dtype)
    return cp.random.random(n, dtype=cp.float32).astype(dtype)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(prog="once.py", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("operator", help="id of an operator of the bundle")
    parser.add_argument("--json", type=Path, metavar="FILE", help="results of run.py: take the fastest candidate")
    parser.add_argument("--runs", type=int, default=3)
    given = parser.parse_args(arguments)
    try:
        artifact = chosen(given.bundle, given.operator, given.json)
        cp = cupy()
        module = Module(cp, artifact if artifact.binary is not None else build(artifact))
        data = {a.name: contents(cp, a) for a in artifact.arguments}
        for _ in range(given.runs):
            module.launch({name: x.data.ptr for name, x in data.items()}, cp.cuda.get_current_stream())
        cp.cuda.get_current_stream().synchronize()
    except RollerError as err:
        sys.stderr.write(f"once.py: error: {err}\n")
        return 1
    print(f"{given.operator}: {artifact.program}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
