"""Expected errors of predictions: the validated errors of a device, by the bottleneck of an estimate.

The error of a predicted time includes all errors of the spec and the model; the error of the predicted ratio between
two candidates for one expression includes only errors that differ between them. Ratios decide which candidates are
worth timing.
"""

from __future__ import annotations

import math
from typing import Any

from roller.hardware import DeviceSpec
from roller.hardware.sections import UNVALIDATED_ERROR
from roller.perf.tile_batch import TileBatch
from roller.tile.program import RProgram
from roller.tile.structures import structure_named

#: Errors assumed for devices whose specs have no validated ones: large, so that more candidates are timed.
UNVALIDATED = {
    "prediction_error": UNVALIDATED_ERROR,
    "matrix_error": UNVALIDATED_ERROR,
    "mechanism_error": 0.2,
    "ranking_error": 0.25,
    "same_kernel_error": 0.1,
}
#: Name of the field of ``accuracy``, by bottleneck.
_FIELD = {
    "compute": "compute_error",
    "copy": "compute_error",
    "dram": "memory_error",
    "l2": "memory_error",
    "l3": "memory_error",
    "latency": "overhead_error",
    "launch": "overhead_error",
}


def prediction_error(spec: DeviceSpec, bottleneck: str, matrix: bool = False, mechanisms: int = 0) -> float:
    """Return the expected relative error (one sigma) of a prediction bound by ``bottleneck``.

    Examples
    --------
    >>> from roller.hardware import load_spec
    >>> spec = load_spec("v100").with_overrides({"accuracy.prediction_error": 0.2, "accuracy.memory_error": 0.05})
    >>> prediction_error(spec, "dram")
    0.05
    """
    # The errors by bottleneck were validated with kernels that use no matrix unit, so matrix programs have a separate
    # error. Each unconfirmed mechanism (:func:`unconfirmed_mechanisms`) adds an independent error.
    own = None if matrix else getattr(spec.accuracy, accuracy_field_name(bottleneck))
    confirmed = (
        own if own is not None else _validated_or_default_error(spec, "matrix_error" if matrix else "prediction_error")
    )
    if not mechanisms:
        return confirmed
    return math.hypot(confirmed, math.sqrt(mechanisms) * _validated_or_default_error(spec, "mechanism_error"))


def accuracy_field_name(bottleneck: str) -> str:
    """Return the name of the field of ``accuracy`` for estimates bound by ``bottleneck``."""
    return _FIELD.get(bottleneck, "prediction_error")


def unconfirmed_mechanisms(batch: TileBatch, spec: DeviceSpec) -> tuple[str, ...]:
    """Return those mechanisms of a batch that no kernel used when the GPU specifications were validated."""
    # The published kernels have none of these pipelines, sliding windows or Winograd transforms. Pipelines of matrix
    # units are compared in benchmarks.model_devices, and CPUs are validated with random programs.
    if not spec.traits.blocks:
        return ()
    found = {
        "pipeline": batch.is_pipelined and batch.fragment is None,
        "Winograd": batch.traits.output_side > 0,
        "walk along windows": batch.traits.slides_windows,
    }
    return tuple(name for name, used in found.items() if used)


def ranking_error(spec: DeviceSpec, same_kernel: bool = False) -> float:
    """Return the expected relative error (one sigma) of the predicted ratio of two candidates for one expression."""
    return _validated_or_default_error(spec, "same_kernel_error" if same_kernel else "ranking_error")


def kernel_family_key(program: RProgram) -> tuple[Any, ...]:
    """Return the key that programs with the same kernel share: form, structure, register tile, vectors and staging.

    Examples
    --------
    >>> import roller
    >>> found = roller.construct(roller.ops.matmul(512, 512, 512), device="cpu-avx512", top_k=10)
    >>> 1 < len({kernel_family_key(c.program) for c in found}) < 10
    True
    """
    # Programs of a family differ in register tiles per block or task and in reduction steps, so errors of the inner
    # loop are common to them.
    return (
        program.axis_names, program.structure, program.tiles[0], program.vector_axis, program.vector_elements,
        program.staged, program.split_k > 1, program.nontemporal,
    )  # fmt: skip


def kernel_form_key(family: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the key that kernel families share if they differ only in their register tile or its vector axis.

    Examples
    --------
    >>> import roller
    >>> found = roller.construct(roller.ops.matmul(512, 512, 512), device="cpu-avx512", top_k=10)
    >>> families = {kernel_family_key(c.program) for c in found}
    >>> len({kernel_form_key(f) for f in families}) < len(families)
    True
    """
    # The model predicts register reuse best. Kernels with further work (Winograd transforms, passes over rows) have
    # errors that depend on the tile, so each family is a separate form.
    names, structure, *_ = family
    return (names, structure) if structure_named(structure).reuses else family


def _validated_or_default_error(spec: DeviceSpec, name: str) -> float:
    value: float | None = getattr(spec.accuracy, name)
    return UNVALIDATED[name] if value is None else value
