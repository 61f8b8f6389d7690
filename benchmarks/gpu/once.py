"""Run one kernel of a bundle, for a profiler: ``ncu --set full python3 b/benchmarks/gpu/once.py b/operators M5``.

Without ``--candidate`` it is the first one of the operator. Needs Python, NumPy and CuPy; no kernel runs but ours (data
is copied there), and nothing is checked or timed here.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.gpu.cards import CardBundle
from roller.artifact import KernelArtifact
from roller.backends.build import build
from roller.backends.cuda.cupy_runtime import import_cupy
from roller.backends.cuda.guarded_buffer import GuardedBuffer
from roller.backends.cuda.loaded_gpu_module import LoadedImage
from roller.backends.periodic_inputs import periodic_inputs
from roller.errors import ArtifactError, RollerError
from roller.runtime.bundle_format import Bundle
from roller_runtime.core.dtypes import storage_dtype


def chosen(folder: Path, operator: str, candidate: str | None, card: str = "") -> KernelArtifact:
    """Return the kernel to run, of one card's candidates where the bundle is for several; of the first card's else.

    Raises
    ------
    ArtifactError
        Where the bundle has no such operator or candidate.
    """
    names = [card] if card else sorted(p.stem for p in folder.glob("cards/*.xz"))
    bundle = CardBundle(folder, names[0]) if names else Bundle(folder)
    entry = next((e for e in bundle.operators if e.id == operator), None)
    if entry is None:
        known = ", ".join(e.id for e in bundle.operators[:20])
        raise ArtifactError(f"{folder}: expected operator '{operator}', found {known} ... Use one of the bundle's ids.")
    candidates = dict(bundle.load(entry))
    if candidate is not None and candidate not in candidates:
        raise ArtifactError(f"{folder}: {operator}: expected one of {list(candidates)}, got '{candidate}'.")
    return candidates[candidate] if candidate is not None else next(iter(candidates.values()))


def run(artifact: KernelArtifact, runs: int) -> None:
    """Launch a kernel on random data.

    Raises
    ------
    RollerError
        Where CuPy, a device or a compiler that is needed is missing.
    """
    cp = import_cupy()
    module = LoadedImage(cp, artifact if artifact.binary is not None else build(artifact))
    data = {a.name: GuardedBuffer(cp, math.prod(a.shape) * storage_dtype(a.dtype).itemsize) for a in artifact.arguments}
    for argument, values in zip(artifact.inputs, periodic_inputs(artifact.expression, 0), strict=True):
        data[argument.name].fill(values)
    pointers, stream = {name: x.ptr for name, x in data.items()}, cp.cuda.Stream(non_blocking=True)
    cp.cuda.runtime.deviceSynchronize()
    module.prepare(pointers, stream)
    for _ in range(runs):
        module.launch(pointers, stream)
    stream.synchronize()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(prog="once.py", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("operator", help="id of an operator of the bundle")
    parser.add_argument("--candidate", metavar="ID", help="the first one when absent")
    parser.add_argument("--card", default="", metavar="NAME", help="whose candidates, where there are several")
    parser.add_argument("--runs", type=int, default=1)
    given = parser.parse_args(arguments)
    try:
        artifact = chosen(given.bundle, given.operator, given.candidate, given.card)
        run(artifact, given.runs)
    except RollerError as err:
        sys.stderr.write(f"once.py: error: {err}\n")
        return 1
    print(f"{given.operator}: {artifact.program}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
