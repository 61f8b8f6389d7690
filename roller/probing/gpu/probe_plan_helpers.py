"""Helpers for probe plans: resident blocks and TEUs, and the expected results of each case."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from roller.errors import SpecError
from roller.hardware import DeviceSpec
from roller.probing.gpu.probe_kernel_references import kernel_reference
from roller.probing.registry import microbench_folder
from roller.runtime.probe_plan_format import CHECK_STEPS, BufferContents, ProbeCase, ProbePlan

#: Number of threads whose results are compared.
_SAMPLED = 24
#: Relative tolerance of floating-point results; integers must be equal.
_TOLERANCE = {"int32": 0.0, "float32": 2e-3}


@functools.cache
def read_probe_source(name: str) -> str:
    """Return the source of a probe with its portability header inlined."""
    folder = microbench_folder() / "gpu"
    try:
        text = (folder / f"{name}.cu").read_text(encoding="utf-8")
        portable = (folder / "portable.h").read_text(encoding="utf-8").replace("#pragma once\n", "")
    except OSError as err:
        raise SpecError(f"{folder}: cannot read the probe '{name}' ({err.strerror}). Reinstall roller.") from err
    return text.replace('#include "portable.h"', portable)


def plan_with_expected_results(
    name: str,
    inputs: tuple[BufferContents, ...],
    cases: Sequence[ProbeCase],
    *,
    output_words: int | None = None,
    source: str | None = None,
    arch: str = "",
) -> ProbePlan:
    """Return a plan whose cases include expected results."""
    words = output_words or max(c.threads + (c.grid if c.cycles_word is not None else 0) for c in cases)
    done = tuple(
        c
        if c.checks
        else replace(c, checks=_expected_results(c, inputs[c.input], source), tolerance=_TOLERANCE[c.output_dtype])
        for c in cases
    )
    return ProbePlan(name, read_probe_source(source or name), inputs, words, done, arch)


def _expected_results(case: ProbeCase, data: BufferContents, source: str | None) -> tuple[tuple[int, float], ...]:
    rng = np.random.default_rng(case.threads)
    picked = rng.integers(0, case.threads, _SAMPLED)
    threads = np.unique(np.concatenate([[0, case.threads - 1], picked])).astype(np.int64)
    values = kernel_reference(case, data, uniform=source == "matrix_cdna")(CHECK_STEPS, case, data, threads)
    return tuple((int(t), float(v)) for t, v in zip(threads, values, strict=True))


def count_resident_teus(spec: DeviceSpec) -> int:
    """Return the number of TEUs resident on the whole device in blocks of two."""
    assert spec.limits.threads_per_unit and spec.limits.blocks_per_unit  # required for GPUs by the schema
    return spec.units * min(spec.limits.threads_per_unit // spec.teu.lanes, 2 * spec.limits.blocks_per_unit)


def count_resident_blocks(spec: DeviceSpec, block: int) -> int:
    """Return the number of blocks of ``block`` threads, with 32 registers each, resident on the whole device."""
    lim = spec.limits
    assert lim.threads_per_unit and lim.registers_per_unit and lim.blocks_per_unit  # likewise
    per_unit = min(lim.threads_per_unit // block, lim.registers_per_unit // (32 * block), lim.blocks_per_unit)
    return spec.units * max(1, per_unit)


def powers_of_two(low: int, high: int) -> tuple[int, ...]:
    """Return the powers of two from ``low`` up to ``high``, and ``high`` itself.

    >>> powers_of_two(4, 20)
    (4, 8, 16, 20)
    """
    return (*(1 << n for n in range(math.ceil(math.log2(low)), math.ceil(math.log2(high)))), high)
