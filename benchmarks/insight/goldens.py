"""``python -m benchmarks.insight goldens``: everything that forecasts, replays and what-ifs answer, for a comparison.

Write a file before a refactoring, another one after it, and compare them: each difference needs a cause.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.insight.models import trace
from roller.errors import RollerError
from roller.insight.forecast import Forecast
from roller.insight.step.replay import from_kineto, replay
from roller.insight.traced_step import TracedStep
from roller.insight.tracing import trace_entry
from roller.insight.whatif.search import search

DEVICES = ("v100", "a100", "h100", "l4", "t4", "rtx4090", "mi300x", "cpu-avx2")
MODELS = ("resnet50", "lstm", "vit")
_EXAMPLES = Path("examples/train.py")


def main(
    files: Annotated[list[Path], typer.Argument(help="A file to write, or two to compare.")],
    traces: Annotated[Path | None, typer.Option(help="A folder with profiles that are replayed, too.")] = None,
    models: Annotated[str, typer.Option(help="Comma-separated models of the suite.")] = ",".join(MODELS),
) -> None:
    """Write all answers, or print where two files of them differ."""
    if len(files) == 2:
        old, new = (json.loads(path.read_text()) for path in files)
        differing = list(differences(old, new))
        print("\n".join([*differing, f"{len(differing)} of {len(old | new)} answers differ"]))
        raise typer.Exit(1 if differing else 0)
    found: dict[str, Any] = {}
    steps = {name: trace(name, batch=4) for name in models.split(",") if name}
    for name, step in (steps | {str(_EXAMPLES): trace_entry(_EXAMPLES)}).items():
        found |= dict(of_step(name, step))
    for path in sorted(traces.glob("*.json*")) if traces else ():
        found |= dict(of_profile(path))
    files[0].write_text(json.dumps(found, indent=1))
    print(f"{files[0]}: {len(found)} answers")


def of_step(name: str, step: TracedStep) -> Iterator[tuple[str, Any]]:
    """Yield the forecasts and the what-ifs of a step by name."""
    for device in DEVICES:
        for amp in ("fp32", "fp16"):
            for devices in (1, 2, 8):
                try:
                    answer: Any = of_forecast(step.forecast(device, amp=amp, devices=devices))
                except RollerError as error:
                    answer = str(error)
                yield f"{name} {devices}x{device} {amp}", answer
    for one in search(step.graph("a100")):
        yield f"{name} a100 {one.name}", one.answer.iteration_us if one.answer else one.reason


def of_forecast(found: Forecast) -> Mapping[str, Any]:
    """Return the numbers of a forecast."""
    data = found.to_dict()
    return {k: v for k, v in data.items() if isinstance(v, (int, float))} | {"memory": data["memory"]["reserved_bytes"]}


def of_profile(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield the replay and the what-ifs of a profile by name."""
    try:
        graph = from_kineto(path)
        replayed = replay(graph)
        yield f"{path.name} replay", [replayed.iteration_us, replayed.measured_us]
        for one in search(graph):
            yield f"{path.name} {one.name}", one.answer.iteration_us if one.answer else one.reason
    except RollerError as error:
        yield f"{path.name}", str(error)


def differences(old: Mapping[str, Any], new: Mapping[str, Any], tolerance: float = 1e-9) -> Iterator[str]:
    """Yield a line for each answer that is not the same in both.

    Examples
    --------
    >>> list(differences({"a": 1.0, "b": 2.0}, {"a": 1.0, "b": 2.1}))
    ['b: 2.0, then 2.1']
    """
    for key in sorted(old.keys() | new.keys()):
        a, b = old.get(key), new.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            yield from (f"{key} {line}" for line in differences(a, b, tolerance))
        elif not _same(a, b, tolerance):
            yield f"{key}: {a}, then {b}"


def _same(a: Any, b: Any, tolerance: float) -> bool:
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(_same(x, y, tolerance) for x, y in zip(a, b, strict=True))
    if isinstance(a, (int, float)) and isinstance(b, (int, float)):
        return math.isclose(a, b, rel_tol=tolerance, abs_tol=1e-15)
    return bool(a == b)
