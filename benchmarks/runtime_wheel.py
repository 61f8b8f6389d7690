"""``python -m benchmarks.runtime_wheel FOLDER``: saved models in an environment that has only roller-runtime and NumPy.

Builds the wheel, installs it alone, compiles and saves ResNet-50 and BERT (once, in a folder that stays), and runs them
in new processes of that environment, and from C: results beside ONNX Runtime's, and the time from starting to import to
the first result.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Annotated

import numpy as np
import onnxruntime
import typer

import roller
import roller_runtime
from benchmarks.models.feeds import random_feeds
from benchmarks.models.registry import build

ROOT = Path(__file__).resolve().parents[1]
#: Goals: MB of the wheel, and seconds to import and load.
WHEEL_MB, LOAD_S = 10.0, 0.3
#: Largest difference to ONNX Runtime, of the largest absolute value; processes of which the median counts.
CLOSE, PROCESSES = 1e-4, 5
#: Names in ``benchmarks.models``.
MODELS = ("resnet50", "bert_base")
_RUN = """
import json, sys, time
start = time.perf_counter()
import roller_runtime
session = roller_runtime.load_model(sys.argv[1])
loaded = time.perf_counter() - start
import numpy as np
made = session.run(None, dict(np.load(sys.argv[2])))
done = time.perf_counter() - start
np.savez(sys.argv[3], *made)
from importlib.metadata import distributions
print(json.dumps([loaded, done, sorted(d.metadata["Name"] for d in distributions())]))
"""


def main(folder: Annotated[Path, typer.Argument(help="Where models, wheel and environment stay.")]) -> None:
    """Run saved models without roller; exit with 1 if one misses a goal."""
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    wheel = build_wheel(folder / "dist")
    size = wheel.stat().st_size / 1e6
    python = make_environment(folder / "env", wheel)
    print(f"{wheel.name}: {size:.2f} MB (goal {WHEEL_MB:.0f})\n")
    print("| model | folder MB | loaded s | first result s | off | in C: opened ms, call ms | off |")
    print("|---|---|---|---|---|---|---|", flush=True)
    good = [run_model(name, folder, python) for name in MODELS]
    raise typer.Exit(0 if all(good) and size < WHEEL_MB else 1)


def build_wheel(folder: Path) -> Path:
    """Build the wheel of roller-runtime."""
    shutil.rmtree(folder, ignore_errors=True)
    words = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(words, cwd=ROOT / "runtime", check=True, capture_output=True)
    (found,) = folder.glob("*.whl")
    return found


def make_environment(folder: Path, wheel: Path) -> Path:
    """Return the Python of a new environment with the wheel alone."""
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = folder / "bin" / "python"
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", str(wheel)], check=True, env=_environment())
    return python


def run_model(name: str, folder: Path, python: Path) -> bool:
    """Compile and save a model if that was not done; run it; print a row; return whether it meets the goals."""
    path, saved, feeds_file = build(name, folder), folder / f"{name}.model", folder / f"{name}.npz"
    if not saved.exists():
        roller.compile_model(path).save(saved)
    feeds = random_feeds(path, 2026)
    np.savez(feeds_file, **feeds)
    meant = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, feeds)
    made = folder / "made.npz"
    runs = []
    for _ in range(PROCESSES):
        words = [str(python), "-c", _RUN, str(saved), str(feeds_file), str(made)]
        done = subprocess.run(words, cwd=folder, env=_environment(), capture_output=True, text=True, check=True)
        runs.append(json.loads(done.stdout))
    assert set(runs[0][2]) <= {"numpy", "pip", "roller-runtime", "setuptools"}, runs[0][2]
    loaded, first = median(r[0] for r in runs), median(r[1] for r in runs)
    with np.load(made) as arrays:
        off = max(_difference(arrays[f"arr_{n}"], y) for n, y in enumerate(meant))
    spoken, off_in_c = _run_in_c(folder, saved, feeds, meant)
    megabytes = sum(p.stat().st_size for p in saved.rglob("*") if p.is_file()) / 1e6
    print(
        f"| {name} | {megabytes:.0f} | {loaded:.3f} | {first:.3f} | {off:.1e} | {spoken} | {off_in_c:.1e} |", flush=True
    )
    return loaded < LOAD_S and off < CLOSE and off_in_c < CLOSE


def _run_in_c(folder: Path, saved: Path, feeds: dict[str, np.ndarray], meant: list[np.ndarray]) -> tuple[str, float]:
    """Run the example in C with the wheel's library; return its times and the difference to ``meant``."""
    package = next((folder / "env" / "lib").glob("python*/site-packages/roller_runtime"))
    program, include = folder / "run_saved_model", package / "include"
    sources = [str(ROOT / "examples" / "c" / "run_saved_model.c"), str(include / "roller_runtime.c")]
    subprocess.run(["cc", "-O2", "-pthread", "-I", str(include), "-o", str(program), *sources, "-ldl"], check=True)
    session = roller_runtime.load_model(saved)
    inputs = []
    for tensor in session.inputs:
        feeds[tensor.name].tofile(folder / f"{tensor.name}.bin")
        inputs.append(str(folder / f"{tensor.name}.bin"))
    done = subprocess.run(
        [str(program), str(saved), str(folder / "made-"), *inputs], env={"LD_LIBRARY_PATH": str(package / "lib")},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    words = done.stdout.splitlines()[-1].split()
    off = max(
        _difference(np.fromfile(folder / f"made-{n}.bin", y.dtype).reshape(y.shape), y) for n, y in enumerate(meant)
    )
    return f"{words[2]}, {words[7]}", off


def _environment() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}


def _difference(found: np.ndarray, meant: np.ndarray) -> float:
    return float(np.abs(found - meant).max() / np.abs(meant).max())


if __name__ == "__main__":
    typer.run(main)
