"""Compares devices, device counts, batches and precisions by time, memory, and cost per sample at the user's rates."""

from __future__ import annotations

import csv
import importlib.util
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from roller.core.renamed import getattr_for_moved_names
from roller.errors import ModelError, NoCandidateError, RollerError
from roller.hardware import DeviceSpec
from roller.insight.cost.compiled import apply_policy_to_trace
from roller.insight.forecast import Forecast
from roller.insight.memory.largest_batch import largest_batch_on_device
from roller.insight.rate_card import RateCard
from roller.insight.trace.gradient_buckets import buckets, trace_with_bucket_storages
from roller.insight.trace.progress import report_progress
from roller.insight.trace.trace import Trace
from roller.insight.traced_step import TracedStep

#: Batch value that requests the largest batch that fits.
LARGEST = "max"
__getattr__ = getattr_for_moved_names(__name__, ("roller.insight.rate_card",))
_PICTURES = (".png", ".svg", ".pdf")


@dataclass(frozen=True)
class SweepRow:
    """One row of a sweep; every time is predicted.

    Parameters
    ----------
    device, devices
        Name of the device, and the number of devices that share the batch.
    batch
        Samples per step on all devices together; 0 without a forecast.
    amp, checkpoint
        Precision, and whether blocks are recomputed in the backward pass.
    forecast
        Forecast for one device's part of the batch; ``None`` if there is none, for the reason in ``said``.
    price_per_million
        Cost of a million samples, in the user's currency; ``None`` if the step does not fit or the rate is unknown.
    front
        Whether the row is on the Pareto front of cost and speed; without rates, whether no other row is faster.
    said
        Why there is no forecast; ``""`` if there is one.
    """

    device: str
    devices: int
    batch: int
    amp: str
    checkpoint: bool
    forecast: Forecast | None = field(repr=False)
    price_per_million: float | None = None
    front: bool = False
    said: str = ""

    @property
    def throughput(self) -> float:
        """Samples per second; 0 if the step does not fit."""
        return 0.0 if self.forecast is None else self.forecast.throughput

    def to_dict(self) -> dict[str, Any]:
        """Return the row as a flat mapping of plain values."""
        found = self.forecast
        memory = None if found is None else found.memory
        return {
            "device": self.device, "devices": self.devices, "batch": self.batch, "amp": self.amp,
            "checkpoint": self.checkpoint, "kind": "predicted",
            "fits": memory is not None and memory.fits,
            "iteration_s": None if found is None else found.iteration_s,
            "lower_s": None if found is None else found.lower_s,
            "upper_s": None if found is None else found.upper_s,
            "throughput_per_s": self.throughput,
            "total_bytes": None if memory is None else memory.total_bytes,
            "bound_by_launches": None if found is None else found.bound_by_launches,
            "price_per_million": self.price_per_million, "front": self.front, "said": self.said,
        }  # fmt: skip


def sweep(
    step: TracedStep,
    devices: Sequence[tuple[DeviceSpec, int]],
    *,
    batches: Sequence[int | str | None] = (None,),
    amps: Sequence[str] = ("fp32",),
    checkpoints: Sequence[bool] = (False,),
    policy: str = "library",
    prices: RateCard | None = None,
    done: Callable[[str], None] = lambda name: None,
) -> list[SweepRow]:
    """Return a row for each combination of device, batch, precision and checkpointing, with the Pareto front marked.

    Parameters
    ----------
    step
        A step returned by :func:`roller.trace`.
    devices
        Specifications, each with the number of devices that train together.
    batches
        Samples per step on all devices together; ``"max"`` for the largest batch that fits; ``None`` for the step's own
        batch.
    amps, checkpoints, policy
        See :meth:`~roller.insight.traced_step.TracedStep.forecast`.
    prices
        Hourly rates of devices.
    done
        Called with the name of each row.

    Raises
    ------
    RollerError
        If a batch cannot be divided evenly among devices, or the step fails in every row.
    """
    rows: list[SweepRow] = []
    failed: list[ModelError] = []
    whole = len(devices) * len(amps) * len(checkpoints) * len(batches)
    for spec, count in devices:
        for amp in amps:
            for checkpoint in checkpoints:
                for batch in batches:
                    try:
                        row = _forecast_row(step, spec, count, batch, amp, checkpoint, policy)
                    except (
                        ModelError
                    ) as error:  # e.g. bfloat16 on a device without it: the other rows still have results
                        failed.append(error)
                        row = SweepRow(spec.name, count, 0, amp, checkpoint, None, said=str(error))
                    rows.append(row if prices is None else _add_cost(row, prices))
                    done(f"{row.device} {row.amp} {row.batch}")
                    report_progress("sweep", len(rows), whole)
    if failed and len(failed) == len(rows):
        raise failed[0]
    return list(mark_pareto_front(rows))


def _forecast_row(
    step: TracedStep, spec: DeviceSpec, count: int, batch: int | str | None, amp: str, checkpoint: bool, policy: str
) -> SweepRow:
    def trace_with_batch(part: int) -> Trace:
        traced = step.at(batch=part, device=spec, amp=amp, checkpoint=checkpoint)
        trace = apply_policy_to_trace(traced, policy, on_gpu=spec.traits.blocks)
        return trace if count == 1 else trace_with_bucket_storages(trace, buckets(trace))

    if batch == LARGEST:
        try:
            part = largest_batch_on_device(trace_with_batch, spec).batch
        except NoCandidateError as error:
            return SweepRow(spec.name, count, 0, amp, checkpoint, None, said=str(error))
    else:
        whole = int(batch or step.options["batch"])
        if whole % count:
            raise RollerError(
                f"batch: expected a multiple of {count} for {count} {spec.name}, got {whole}. "
                f"Take {whole + count - whole % count}."
            )
        part = whole // count
    found = step.forecast(spec, batch=part, amp=amp, checkpoint=checkpoint, policy=policy, devices=count)
    return SweepRow(spec.name, count, part * count, amp, checkpoint, found)


def _add_cost(row: SweepRow, prices: RateCard) -> SweepRow:
    hour = prices.per_hour(row.device)
    if hour is None or not row.throughput:
        return row
    return replace(row, price_per_million=1e6 / row.throughput * row.devices * hour / 3600)


def mark_pareto_front(rows: Sequence[SweepRow]) -> Iterator[SweepRow]:
    """Yield the rows with the Pareto front marked, i.e. the rows that no other row dominates in cost and speed.

    If any row has a cost, rows without one are neither compared nor marked.
    """
    priced = any(row.price_per_million is not None for row in rows)

    def cost_and_speed(row: SweepRow) -> tuple[float, float] | None:
        if not row.throughput or (priced and row.price_per_million is None):
            return None
        return (row.price_per_million or 0.0, -row.throughput)

    known = [cost for row in rows if (cost := cost_and_speed(row)) is not None]
    for row in rows:
        own = cost_and_speed(row)
        beaten = own is None or any(c != own and c[0] <= own[0] and c[1] <= own[1] for c in known)
        yield replace(row, front=not beaten)


def rows_to_csv(rows: Sequence[SweepRow]) -> str:
    """Return the rows as CSV with a header."""
    out = io.StringIO()
    plain = [row.to_dict() for row in rows]
    writer = csv.DictWriter(out, list(plain[0]) if plain else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(plain)
    return out.getvalue()


def draw_sweep(rows: Sequence[SweepRow], path: str | Path, prices: RateCard | None = None) -> None:
    """Draw throughput against cost (or against memory, if there are no rates) to a file, with one point per row."""
    check_picture_path(path)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5))
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for row in rows:
        if not row.throughput or row.forecast is None:
            continue
        x = row.price_per_million if prices is not None else row.forecast.memory.total_bytes / 2**30
        if x is not None:
            axes.scatter([x], [row.throughput], marker="o" if row.front else "x", color="C0" if row.front else "C7")
            axes.annotate(row_label(row), (x, row.throughput), fontsize=7, xytext=(3, 3), textcoords="offset points")
    axes.set_xlabel(f"{prices.currency} per million samples" if prices is not None else "memory of a device, GiB")
    axes.set_ylabel("samples/s (predicted)")
    figure.savefig(path)


def check_picture_path(path: str | Path) -> None:
    """Raise an error if ``path`` has an unsupported suffix or Matplotlib is missing."""
    if Path(path).suffix not in _PICTURES:
        raise RollerError(f"picture: expected a path that ends in {', '.join(_PICTURES)}, got {path}. Rename it.")
    if importlib.util.find_spec("matplotlib") is None:
        raise RollerError(
            "picture: expected matplotlib, got none that can be imported. Install it, e.g. pip install matplotlib, or "
            "write --csv."
        )


def row_label(row: SweepRow) -> str:
    """Return the label of a row: devices, batch, and options that differ from the defaults.

    Examples
    --------
    >>> row_label(SweepRow("a100", 2, 64, "bf16", True, None))
    '2xa100, batch 64, bf16, checkpointing'
    """
    device = row.device if row.devices == 1 else f"{row.devices}x{row.device}"
    extra = ([row.amp] if row.amp != "fp32" else []) + (["checkpointing"] if row.checkpoint else [])
    return ", ".join([device, f"batch {row.batch}", *extra])
