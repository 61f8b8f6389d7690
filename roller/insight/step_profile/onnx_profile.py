"""The profile of one inference of an ONNX model, with one node per kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from roller.hardware import DeviceSpec
from roller.hardware.is_spec_calibrated import is_calibrated
from roller.insight.memory.largest_batch import device_capacity_bytes
from roller.insight.onnx_models import forecast_onnx
from roller.insight.step_profile.node import Seconds
from roller.insight.step_profile.predicted_profile import relative_price_interval
from roller.insight.step_profile.step_profile import StepProfile
from roller.insight.step_profile.tree_builder import NodeKey, TreeBuilder


def profile_onnx(
    model: str | Path,
    device: str | DeviceSpec,
    *,
    batch: int | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    policy: str = "roller",
) -> StepProfile:
    """Predict the profile of an ONNX model; for parameters, see :func:`~roller.insight.onnx_models.forecast_onnx`."""
    from roller.compile_arguments import spec_and_local_device

    spec = spec_and_local_device(device)[0]
    found = forecast_onnx(model, spec, batch=batch, shapes=shapes, policy=policy)
    tree = TreeBuilder()
    for kernel in found.kernels:
        seconds = Seconds(kernel.seconds, kernel.seconds)
        tree.add_time(
            (NodeKey("kernel", kernel.name),), "forward", seconds, calls=kernel.runs, bound=kernel.resource,
            error=relative_price_interval(kernel),
        )  # fmt: skip
    tree.add_bytes((), "parameter", name="constants", held=found.weights_bytes)
    tree.add_bytes((), "activation", name="arena", held=found.arena_bytes)
    root = tree.build()
    return StepProfile(
        Path(model).name, "predicted", spec.name, root, root.wall_s, found.lower_s, found.upper_s, found.batch,
        float(found.batch), policy=found.policy, bound="device", capacity_bytes=device_capacity_bytes(spec),
        notes=found.notes,
        is_calibrated=is_calibrated(spec),
    )  # fmt: skip
