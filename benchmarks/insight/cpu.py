"""Inference and training steps of five models on this machine's processor, measured beside what is predicted of them.

    python -m benchmarks.insight cpu [--write]

PyTorch runs its own kernels, on every core this process may use; prices are those of ``policy="library"`` on the device
``cpu``, which ``roller probe cpu`` has measured. Every round starts a process for each model, one after the other, and
times both kinds of step there in windows that nobody disturbed; one in which there were none is repeated a few times,
and said to be in doubt if that is no help. The median of the rounds counts. Shares are those of ``torch.profiler``, by
classes of operators, of the fastest of its steps. Limits: no time is off by more than 25 %, no share by more than 10
points.

Prices were made with the first three models and single operators; the other two were held back until they stood. What
they then showed of convolutions (few channels, windows that do not overlap) was looked up on single operators, too.
"""

from __future__ import annotations

import multiprocessing
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

TIME_LIMIT, SHARE_LIMIT = 0.25, 0.10
RESULT = Path(__file__).parents[1] / "results" / "insight_cpu.md"
#: Models that nobody looked at while the prices were made.
HELD_BACK = ("lstm", "unet")
MODES = ("inference", "training")
#: Steps before the first that is timed, those that are profiled, and tries of a round until nobody disturbs it.
_WARM, _PROFILED, _TRIES = 3, 5, 4


@dataclass(frozen=True)
class Model:
    """A small model, its inputs and targets, and what updates it."""

    build: Callable[[], Any]
    inputs: Callable[[], Any]
    targets: Callable[[], Any]
    optimizer: str


def models() -> Mapping[str, Model]:
    """Return the five models."""
    import torch
    from torch import nn

    from benchmarks.insight import images, transformers
    from roller.suite.models.residual import ResNet50

    def mlp() -> nn.Module:
        return nn.Sequential(
            nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
        )  # fmt: skip

    def classes(most: int, *shape: int) -> Callable[[], Any]:
        return lambda: torch.randint(0, most, shape)

    small = transformers.Sizes(4, 256, 4, 1024, 8192, 128)
    return {
        "mlp": Model(mlp, lambda: torch.rand(128, 784), classes(10, 128), "adam"),
        "resnet50": Model(ResNet50, lambda: torch.rand(4, 3, 128, 128), classes(1000, 4), "momentum"),
        "encoder": Model(
            partial(transformers.Encoder, small, fused=True), classes(8192, 8, 128), classes(8192, 8, 128), "adam"
        ),
        "lstm": Model(partial(images.Tagger, 5000, 256, 2, 64), classes(5000, 16, 64), classes(64, 16, 64), "adam"),
        "unet": Model(
            partial(images.UNet, (16, 32, 64, 128)), lambda: torch.rand(2, 3, 128, 128), classes(2, 2, 128, 128), "sgd"
        ),
    }  # fmt: skip


@dataclass
class Seen:
    """What was measured of one model: seconds of each round, and seconds of classes of operators, by kind of step."""

    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    classes: dict[str, list[Counter[str]]] = field(default_factory=lambda: defaultdict(list))
    doubts: list[str] = field(default_factory=list)

    def add(self, other: Seen) -> None:
        """Add another round."""
        for mode in MODES:
            self.seconds[mode] += other.seconds[mode]
            self.classes[mode] += other.classes[mode]
        self.doubts += other.doubts

    def shares(self, mode: str) -> Mapping[str, float]:
        """Return shares of classes, in the step in which their operators took least."""
        least = min(self.classes[mode], key=lambda c: c.total())
        return {kind: seconds / least.total() for kind, seconds in least.items()}


def steps(name: str) -> dict[str, Callable[[], None]]:
    """Return what runs one step of each kind, on real numbers."""
    import torch

    from benchmarks.insight.models import loss

    chosen = models()[name]
    torch.manual_seed(0)
    model, x, y = chosen.build(), chosen.inputs(), chosen.targets()
    optimizer = {
        "adam": lambda p: torch.optim.Adam(p, lr=1e-4),
        "momentum": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9),
        "sgd": lambda p: torch.optim.SGD(p, lr=0.01),
    }[chosen.optimizer](model.parameters())

    def inference() -> None:
        model.eval()
        with torch.no_grad():
            model(x)

    def training() -> None:
        model.train()
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()

    return {"inference": inference, "training": training}


def measured(name: str, threads: int) -> Seen:
    """Time and profile a model in this process."""
    import torch

    from roller.runtime.time_candidate_kernels import measure_median

    torch.set_num_threads(threads)
    found = Seen()
    for mode, run in steps(name).items():
        for _ in range(_WARM):
            run()
        timing = measure_median(run, budget_s=1.5, min_samples=5)
        found.seconds[mode].append(timing.median_s)
        if timing.doubt:
            found.doubts.append(f"{name}, {mode}: {timing.doubt}")
        found.classes[mode] += [profiled(run) for _ in range(_PROFILED)]
    return found


def _round(name: str, threads: int) -> Seen:
    """Return what a process of its own measures of a model, in one that nobody disturbed if there is any."""
    fresh = multiprocessing.get_context("spawn")
    for _ in range(_TRIES):
        with fresh.Pool(1) as pool:
            found: Seen = pool.apply(measured, (name, threads))
        if not found.doubts:
            break
    return found


def profiled(run: Callable[[], None]) -> Counter[str]:
    """Return seconds of a step by class of operators: of an operator, all that runs below it."""
    from torch.profiler import ProfilerActivity, profile

    from roller.insight.cost.cpu.operator_table import has_table_row, operator_kind

    with profile(activities=[ProfilerActivity.CPU]) as found:
        run()
    total: Counter[str] = Counter()

    def walk(event: Any, updating: bool) -> None:
        updating = updating or event.name.startswith("Optimizer.step")
        packet = event.name.replace("::", ".")
        if packet.startswith("aten.") and has_table_row(packet):
            total["optimizer" if updating else operator_kind(packet)] += event.time_range.elapsed_us() / 1e6
            return
        for child in event.cpu_children:
            walk(child, updating)

    for event in found.events():
        if event.cpu_parent is None:
            walk(event, False)
    return total


def predicted(name: str) -> dict[str, tuple[float, Counter[str]]]:
    """Return seconds of each kind of step, and seconds of classes of operators."""
    import roller
    from benchmarks.insight.models import loss
    from roller.insight.cost.cpu.operator_table import operator_kind
    from roller.insight.forecast import HOST_OP_S

    chosen = models()[name]
    model = chosen.build()
    spec = roller.load_spec("cpu")
    training = {"optimizer": chosen.optimizer, "loss": loss, "targets": (chosen.targets(),)}
    found = {}
    for mode in MODES:
        model.train(mode == "training")
        step = roller.trace(model, chosen.inputs(), device=spec, **(training if mode == "training" else {}))
        forecast = step.forecast(spec)
        total: Counter[str] = Counter()
        for operator, price in forecast.operators:
            if price.kernels:
                packet = ".".join(operator.name.split(".")[:2])
                kind = "optimizer" if operator.phase == "optimizer" else operator_kind(packet)
                total[kind] += price.seconds + HOST_OP_S
        found[mode] = forecast.iteration_s, total
    return found


@dataclass(frozen=True)
class Row:
    """A kind of step of a model: seconds, spread of the rounds, and shares of classes, measured and predicted."""

    model: str
    mode: str
    measured_s: float
    spread: float
    predicted_s: float
    shares: Mapping[str, tuple[float, float]]

    @property
    def error(self) -> float:
        """Relative error of the predicted time."""
        return self.predicted_s / self.measured_s - 1

    @property
    def worst_share(self) -> tuple[str, float]:
        """The class whose share is off most, and by how much."""
        apart = {kind: b - a for kind, (a, b) in self.shares.items()}
        kind = max(apart, key=lambda k: abs(apart[k]))
        return kind, apart[kind]

    @property
    def holds(self) -> bool:
        """Whether both limits hold."""
        return abs(self.error) <= TIME_LIMIT and abs(self.worst_share[1]) <= SHARE_LIMIT


def _row(name: str, mode: str, seen: Seen, told: tuple[float, Counter[str]]) -> Row:
    seconds, (predicted_s, classes) = seen.seconds[mode], told
    real = seen.shares(mode)
    shares = {
        kind: (real.get(kind, 0.0), classes[kind] / classes.total()) for kind in sorted({*real, *classes})
    }  # fmt: skip
    middle = statistics.median(seconds)
    return Row(name, mode, middle, (max(seconds) - min(seconds)) / middle, predicted_s, shares)


def summary(rows: list[Row]) -> list[str]:
    """Return sentences: errors of all, of those looked at, and of those held back."""
    groups = {
        "all": rows,
        "looked at": [r for r in rows if r.model not in HELD_BACK],
        "held back": [r for r in rows if r.model in HELD_BACK],
    }  # fmt: skip
    lines = []
    for name, group in groups.items():
        if group:
            errors = [abs(r.error) for r in group]
            share = max(abs(r.worst_share[1]) for r in group)
            lines.append(
                f"{name}: mean error {100 * statistics.mean(errors):.1f} %, worst {100 * max(errors):.1f} % (limit 25);"
                f" worst share {100 * share:.1f} points (limit 10)"
            )
    return lines


def page(rows: list[Row], device: str, threads: int, rounds: int) -> str:
    """Return the results as Markdown."""
    lines = [
        "# Steps of PyTorch on a processor, predicted beside measured", "",
        f"- device: {device}", f"- threads: {threads}, rounds: {rounds}", "",
        "`python -m benchmarks.insight cpu --write` writes this page. Measured times are medians of the rounds, each",
        "of which runs in its own process. Predicted times are those of `policy=\"library\"` on the probed profile.",
        "`lstm` and `unet` were held back until the prices were final.",
        "", *(f"- {line}" for line in summary(rows)), "",
        "| model | step | measured ms | spread of rounds | predicted ms | error | share off most |",
        "|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for r in rows:
        kind, points = r.worst_share
        lines.append(
            f"| {r.model} | {r.mode} | {1e3 * r.measured_s:.2f} | {100 * r.spread:.0f} % | {1e3 * r.predicted_s:.2f} | "
            f"{100 * r.error:+.1f} % | {kind} {100 * points:+.1f} |"
        )
    kinds = sorted({k for r in rows for k in r.shares})
    lines += ["", "Shares of operators' time, measured / predicted, in percent:", ""]
    lines += ["| model | step | " + " | ".join(kinds) + " |", "|---|---|" + "---|" * len(kinds)]
    for r in rows:
        cells = (f"{100 * r.shares[k][0]:.1f} / {100 * r.shares[k][1]:.1f}" if k in r.shares else "" for k in kinds)
        lines.append(f"| {r.model} | {r.mode} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main(
    names: Annotated[list[str] | None, typer.Argument(help="Models; by default all five.")] = None,
    *,
    rounds: Annotated[int, typer.Option(min=1, help="Processes that time each model.")] = 5,
    strict: Annotated[bool, typer.Option(help="A missed limit is an error.")] = False,
    write: Annotated[bool, typer.Option(help="Write the page.")] = False,
) -> None:
    """Measure steps of five models on this machine, and print them beside what is predicted."""
    import roller

    known = models()
    chosen = names or list(known)
    unknown = [n for n in chosen if n not in known]
    if unknown:
        raise typer.BadParameter(f"expected some of {', '.join(known)}, got {', '.join(unknown)}")
    spec = roller.load_spec("cpu")
    told = {name: predicted(name) for name in chosen}
    seen: dict[str, Seen] = {name: Seen() for name in chosen}
    for _ in range(rounds):
        for name in chosen:
            seen[name].add(_round(name, spec.units))
    rows = [_row(name, mode, seen[name], told[name][mode]) for name in chosen for mode in MODES]
    table = Table("model", "step", "measured ms", "spread", "predicted ms", "error", "share off most", box=None)
    for r in rows:
        kind, points = r.worst_share
        table.add_row(
            r.model, r.mode, f"{1e3 * r.measured_s:.2f}", f"{100 * r.spread:.0f} %", f"{1e3 * r.predicted_s:.2f}",
            f"{100 * r.error:+.1f} %", f"{kind} {100 * points:+.1f}",
        )  # fmt: skip
    Console(width=110).print(table)
    for line in (*summary(rows), *(f"in doubt: {d}" for name in chosen for d in seen[name].doubts)):
        print(line)
    if write:
        RESULT.write_text(page(rows, spec.description, spec.units, rounds), encoding="utf-8")
    if strict and not all(r.holds for r in rows):
        raise typer.Exit(1)
