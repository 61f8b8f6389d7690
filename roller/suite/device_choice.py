"""The cost of a million units of each model on each device, at the user's hourly rates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from roller.insight.rate_card import RateCard
from roller.suite.studies import Studies


class DeviceCost(NamedTuple):
    """A model on a device, at the fitting batch with the highest predicted throughput.

    Parameters
    ----------
    model, device, batch, unit
        Names of the model and the device, number of samples per step, and unit of throughput.
    throughput
        Units per second.
    relative
        Throughput divided by the first device's throughput; ``None`` if the model does not fit the first device.
    cost
        Cost of a million units in the user's currency; ``None`` without a rate.
    cheapest
        Whether no other device is cheaper; without rates, whether no other device is faster.
    """

    model: str
    device: str
    batch: int
    unit: str
    throughput: float
    relative: float | None
    cost: float | None
    cheapest: bool

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return {**self._asdict(), "kind": "predicted"}


def device_costs(studies: Studies, prices: RateCard | None = None) -> Iterator[DeviceCost]:
    """Yield a row for each model and each device on which it fits."""
    for model, entry in studies.models.items():
        best = {}
        for device in studies.devices:
            rows = studies.sweep_of(model, device)
            if rows:
                best[device] = max(rows, key=lambda row: row["throughput_per_s"])
        first = best.get(next(iter(studies.devices)))
        costs = {
            device: 1e6 / row["throughput_per_s"] * hour / 3600
            for device, row in best.items()
            if prices is not None and (hour := prices.per_hour(device)) is not None
        }
        speeds = {device: row["throughput_per_s"] for device, row in best.items()}
        for device, row in best.items():
            cheapest = costs.get(device) == min(costs.values()) if costs else speeds[device] == max(speeds.values())
            relative = None if first is None else speeds[device] / first["throughput_per_s"]
            yield DeviceCost(
                model, device, row["batch"], entry.unit, speeds[device], relative, costs.get(device), cheapest
            )
