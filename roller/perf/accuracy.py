"""How far predictions may be off: the device's validated errors, by what bounds an estimate.

Two quantities that differ by much. Predicted seconds are off by all that is wrong with the spec and the model;
the ratio of two candidates of one expression only by what is wrong for one of them and right for the other. Which
candidates are worth timing is a question of ratios.
"""

from __future__ import annotations

import math
from typing import Any

from roller.hardware import DeviceSpec
from roller.hardware.sections import UNVALIDATED_ERROR
from roller.perf.batch import TileBatch
from roller.tile.program import RProgram
from roller.tile.structures import structure_named

#: What is expected of a device nobody validated (its spec has no such field): wide, so that more is timed, not less.
UNVALIDATED = {
    "prediction_error": UNVALIDATED_ERROR,
    "matrix_error": UNVALIDATED_ERROR,
    "mechanism_error": 0.2,
    "ranking_error": 0.25,
    "same_kernel_error": 0.1,
}
#: Field of ``accuracy`` by the term that bounds an estimate.
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

    That of the bottleneck's class where the device gives one, else that of all predictions. Kernels that validated
    those used no matrix unit: programs of one (``matrix``) have an error of their own. Each of as many ``mechanisms``
    as no device has confirmed adds its own, independent of it (:func:`unconfirmed_mechanisms`).

    Examples
    --------
    >>> from roller.hardware import load_spec
    >>> spec = load_spec("v100").with_overrides({"accuracy.prediction_error": 0.2, "accuracy.memory_error": 0.05})
    >>> prediction_error(spec, "dram")
    0.05
    """
    own = None if matrix else getattr(spec.accuracy, error_field(bottleneck))
    confirmed = own if own is not None else _field(spec, "matrix_error" if matrix else "prediction_error")
    if not mechanisms:
        return confirmed
    return math.hypot(confirmed, math.sqrt(mechanisms) * _field(spec, "mechanism_error"))


def error_field(bottleneck: str) -> str:
    """Return the field of ``accuracy`` that is about estimates bound by ``bottleneck``."""
    return _FIELD.get(bottleneck, "prediction_error")


def unconfirmed_mechanisms(batch: TileBatch, spec: DeviceSpec) -> tuple[str, ...]:
    """Return what the programs of a batch do that none of the kernels which validated GPU specifications did.

    Published kernels of threads have no pipelines of ours, walks along windows or Winograd transforms. Pipelines of
    a matrix unit are compared (:mod:`benchmarks.model_devices`), and on a CPU random programs are.
    """
    if not spec.traits.blocks:
        return ()
    found = {
        "pipeline": batch.pipelined and batch.fragment is None,
        "Winograd": batch.traits.output_side > 0,
        "walk along windows": batch.traits.slides_windows,
    }
    return tuple(name for name, used in found.items() if used)


def ranking_error(spec: DeviceSpec, same_kernel: bool = False) -> float:
    """Return the expected relative error (one sigma) of the predicted ratio of two candidates of one expression."""
    return _field(spec, "same_kernel_error" if same_kernel else "ranking_error")


def kernel_family(program: RProgram) -> tuple[Any, ...]:
    """Return what candidates of one kernel share: form, structure, register tile, vectors, staging.

    They differ in how many register tiles a block or task has and in how it steps along reductions: what is
    mispredicted of their inner loop is mispredicted for all of them.

    Examples
    --------
    >>> import roller
    >>> found = roller.construct(roller.ops.matmul(512, 512, 512), device="cpu-avx512", top_k=10)
    >>> 1 < len({kernel_family(c.program) for c in found}) < 10
    True
    """
    return (
        program.axis_names, program.structure, program.tiles[0], program.vector_axis, program.vector_elements,
        program.staged, program.split_k > 1, program.nontemporal,
    )  # fmt: skip


def kernel_form(family: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return what kernel families share that differ in their register tile alone, or in what of it is a vector.

    How such a tile reuses registers is what the model knows best. Kernels that do more than run one (Winograd's
    transforms, passes over rows) are mispredicted by tile: each family is a form of its own.

    Examples
    --------
    >>> import roller
    >>> found = roller.construct(roller.ops.matmul(512, 512, 512), device="cpu-avx512", top_k=10)
    >>> families = {kernel_family(c.program) for c in found}
    >>> len({kernel_form(f) for f in families}) < len(families)
    True
    """
    names, structure, *_ = family
    return (names, structure) if structure_named(structure).reuses else family


def _field(spec: DeviceSpec, name: str) -> float:
    value: float | None = getattr(spec.accuracy, name)
    return UNVALIDATED[name] if value is None else value
