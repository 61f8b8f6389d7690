"""Predicts the time of an ONNX model on a device by pricing its kernels, without PyTorch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from roller.hardware import DeviceSpec
from roller.hardware.is_spec_calibrated import is_calibrated
from roller.insight.cost.kernel_prices import KernelPrice, KernelPricer
from roller.perf.matrix_unit_notes import notes_on_matrix_unit
from roller_runtime.core.display import html_table, seconds_text


@dataclass(frozen=True)
class KernelShare:
    """A kernel of the model: ``seconds`` is the time of all its ``runs``, and ``share`` is their share of the total.

    ``lower`` and ``upper`` are the time minus and plus the expected error; ``None`` if the error is unknown.
    """

    name: str
    runs: int
    seconds: float
    share: float
    resource: str
    lower: float | None = None
    upper: float | None = None


@dataclass(frozen=True)
class ModelForecast:
    """One inference of an ONNX model, predicted.

    Parameters
    ----------
    device, policy, model
        Names of the specification, of the policy that chooses the kernels, and of the model.
    batch
        Samples per inference; 0 if the model's inputs do not give them.
    iteration_s
        Time of one inference: its kernels run one after another, replayed without a host.
    lower_s, upper_s
        ``iteration_s`` minus and plus the expected error, assuming that all errors have the same sign.
    weights_bytes, arena_bytes
        Size, in bytes, of the constants and of the arena that holds the intermediate tensors.
    kernels
        All kernels, the most expensive first.
    notes
        Notes on missing features of the device's matrix unit.
    kind
        ``"calibrated"`` if ``roller probe`` measured rates on the device itself, otherwise ``"predicted"``.
    """

    device: str
    policy: str
    model: str
    batch: int
    iteration_s: float
    lower_s: float
    upper_s: float
    weights_bytes: int
    arena_bytes: int
    kernels: Sequence[KernelShare] = field(repr=False)
    notes: tuple[str, ...] = ()
    kind: Literal["predicted", "calibrated"] = "predicted"

    @property
    def throughput(self) -> float:
        """Samples per second; 0 if the batch is unknown."""
        return self.batch / self.iteration_s if self.iteration_s else 0.0

    def _repr_html_(self) -> str:
        """Return an HTML table of the kernels for a notebook, headed by the inference time and its interval."""
        rows = (
            (x.name, x.runs, seconds_text(x.seconds), _interval_text(x.lower, x.upper), x.resource)
            for x in self.kernels
        )
        spread = _interval_text(self.lower_s, self.upper_s)
        title = f"{self.model} on {self.device}, {self.kind}: {seconds_text(self.iteration_s)} ({spread})"
        return html_table(title, ("kernel", "runs", self.kind, "interval", "bound by"), rows)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data; ``kind`` is the origin of every time."""
        return {**asdict(self), "throughput_per_s": self.throughput}


def _interval_text(lower_s: float | None, upper_s: float | None) -> str:
    return "" if lower_s is None or upper_s is None else f"{seconds_text(lower_s)} to {seconds_text(upper_s)}"


def forecast_onnx(
    model: str | Path | bytes,
    device: str | DeviceSpec,
    *,
    batch: int | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    policy: str = "roller",
) -> ModelForecast:
    """Predict the time of an ONNX model's inference, with nodes fused into kernels as in :func:`roller.compile_model`.

    Parameters
    ----------
    model
        Path of the model, or its bytes.
    device
        A specification or its name.
    batch, shapes
        See :func:`roller.compile_model`.
    policy
        ``"roller"``: the fastest constructed program for each kernel. ``"library"``: a library's program for each
        kernel.

    Raises
    ------
    ModelError
        If the file is not a model, or contains operators that cannot be lowered.
    """
    from roller.compile_arguments import spec_and_local_device
    from roller.models.compile import partition_graph, read_folded_graph
    from roller.models.graph import memory_plan
    from roller_runtime.plan.program_steps import iterate_kernel_runs

    spec = spec_and_local_device(device)[0]
    program = partition_graph(read_folded_graph(model, batch=batch, shapes=shapes))
    planned = memory_plan.plan_memory(program)
    prices = KernelPricer(spec.sustained, policy)
    uses = Counter(run.kernel for run in iterate_kernel_runs(program.steps))
    prices.price_expressions_in_parallel(program.kernels[key].expression for key in uses)
    found = {
        key: prices.price_expression(program.kernels[key].expression).multiply_by_count(n) for key, n in uses.items()
    }
    whole = sum(p.seconds for p in found.values())
    first = [program.values[name].shape for name in program.inputs if name in program.values]
    return ModelForecast(
        spec.name, policy, program.name, batch or (first[0][0] if first and first[0] else 0), whole,
        sum(p.lower for p in found.values()), sum(p.upper for p in found.values()),
        sum(a.nbytes for a in program.constants.values()), planned.arena_bytes,
        _kernel_shares(found, {k: program.kernels[k].expression.name for k in found}, uses, whole),
        notes_on_matrix_unit(prices.priced_expressions, spec, ours=policy == "roller"),
        "calibrated" if is_calibrated(spec) else "predicted",
    )  # fmt: skip


def _kernel_shares(
    found: dict[str, KernelPrice], names: dict[str, str], uses: Counter[str], whole: float
) -> list[KernelShare]:
    rows = [
        KernelShare(names[k], uses[k], p.seconds, p.seconds / whole if whole else 0.0, p.resource, p.lower, p.upper)
        for k, p in found.items()
    ]
    return sorted(rows, key=lambda x: -x.seconds)
