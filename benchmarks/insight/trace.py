"""``python -m benchmarks.insight trace``: traces of the suite, with what making them costs on this machine."""

from __future__ import annotations

import time
from collections import Counter
from typing import Annotated

import typer

from benchmarks.insight.models import SUITE, trace
from roller.hardware import load_spec
from roller.insight.cost.kernel_prices import KernelPricer
from roller.insight.forecast import forecast
from roller.insight.trace.trace import AllocEvent, Trace

#: What is asked of every model beside plain training.
VARIANTS = {
    "training": {},
    "amp bf16": {"amp": "bf16"},
    "checkpointing": {"checkpoint": True},
    "inference": {"training": False},
}


def main(
    names: Annotated[list[str] | None, typer.Argument(help="Models; by default the seven of the goals.")] = None,
    variants: Annotated[str, typer.Option(help="Comma-separated: " + ", ".join(VARIANTS))] = "training",
) -> None:
    """Trace models of the suite without a device, and print operators, bytes and CPU seconds."""
    chosen = names or ["resnet50", "bert_large", "gpt2_large", "lstm", "vit", "moe", "unet"]
    print(
        "| model | variant | operators of a step | peak of tensors, MiB | saved for backward, MiB | "
        "trace, CPU s | first price | price for a further device | a further batch, priced |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    with CpuTime():
        forecast(trace("lstm"), "v100", kernels=fresh("v100"))  # imports are no model's
    for name in chosen:
        if name not in SUITE:
            raise typer.BadParameter(f"expected one of {', '.join(SUITE)}, got '{name}'")
        for variant in variants.split(","):
            started = time.process_time()
            found = trace(name, **VARIANTS[variant.strip()])
            spent = time.process_time() - started
            saved = sum(s.size_bytes for s in _steady(found, "activation"))
            with CpuTime() as price:
                forecast(found, "a100", kernels=fresh("a100"))
            with CpuTime() as device:
                forecast(found, "v100", kernels=fresh("v100"))
            with CpuTime() as batch:
                forecast(found.at(batch=2 * found.options["batch"]), "a100", kernels=fresh("a100"))
            print(
                f"| {name} | {variant} | {len(found.steady())} | {peak_bytes(found) / 2**20:.0f} | "
                f"{saved / 2**20:.0f} | {spent:.1f} | {price} | {device} | {batch} |"
            )
            for warning in found.warnings:
                print(f"  {warning}")


class CpuTime:
    """Seconds of processor that a block takes."""

    def __enter__(self) -> CpuTime:
        self.began = time.process_time()
        return self

    def __exit__(self, *raised: object) -> None:
        self.seconds = time.process_time() - self.began

    def __str__(self) -> str:
        return f"{self.seconds:.1f}"


def fresh(device: str) -> KernelPricer:
    """Return no prices kept from before."""
    return KernelPricer(load_spec(device).sustained, "library")


def peak_bytes(found: Trace) -> int:
    """Return the most bytes that tensors hold at once."""
    live = peak = 0
    for event in found.events:
        live += event.size_bytes if isinstance(event, AllocEvent) else -found.storages[event.storage].size_bytes
        peak = max(peak, live)
    return peak


def kinds(found: Trace) -> Counter[str]:
    """Return bytes asked for, by kind."""
    count: Counter[str] = Counter()
    for storage in found.storages.values():
        count[storage.kind] += storage.size_bytes
    return count


def _steady(found: Trace, kind: str) -> list:
    first = found.iterations[-2]
    return [
        storage for number, storage in found.storages.items()
        if storage.kind == kind and found.allocations[number].operator >= first
    ]  # fmt: skip
