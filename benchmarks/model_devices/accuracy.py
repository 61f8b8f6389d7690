"""How far predictions are off, as numbers of specifications: by what bounds a kernel, and by its family."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.model_devices.pricing import Priced
from roller.hardware import load_spec, parse_spec, spec_folder
from roller.hardware.reader import VALIDATED_WITH
from roller.perf.expected_errors import accuracy_field_name

#: Specifications that other measurements validate, of our own programs: ``python -m benchmarks.model_v100``.
VALIDATED_ELSEWHERE = ("v100",)
#: Kernels of which an error is worth a number of its own.
LEAST_KERNELS = 10
#: Errors of ratios of candidates against that of predictions, as stated for a V100 (0.08 and 0.03 of 0.108): nobody
#: published two programs of one operator.
RATIOS = {"ranking_error": 0.74, "same_kernel_error": 0.28}
_RESULTS = "benchmarks/results/model_devices.md"


@dataclass(frozen=True)
class Found:
    """Errors found of a specification: field of ``accuracy``, or family, its error (one sigma of ln), kernels."""

    spec: str
    name: str
    error: float
    kernels: int


def comparable(p: Priced) -> bool:
    """Whether the kernel that is priced is the one that ran, or chosen as freely: not ours against a library's."""
    return p.case.policy is not None or p.case.is_matrix


def by_bound(found: Sequence[Priced]) -> Iterator[Found]:
    """Yield the errors of every specification by field of its ``accuracy``."""
    for spec in dict.fromkeys(p.case.spec for p in found):
        mine = [p for p in found if p.case.spec == spec and comparable(p)]
        fields: dict[str, list[Priced]] = {}
        for p in mine:
            own = "matrix_error" if p.case.is_matrix else "prediction_error"
            fields.setdefault(own, []).append(p)
            if not p.case.is_matrix:
                fields.setdefault(accuracy_field_name(p.bottleneck), []).append(p)
        yield from (Found(spec, name, _error(of), len(of)) for name, of in fields.items() if len(of) >= LEAST_KERNELS)


def by_family(found: Sequence[Priced]) -> Iterator[Found]:
    """Yield the errors of every specification by family."""
    compared = [p for p in found if comparable(p)]
    for key in dict.fromkeys((p.case.spec, p.case.family) for p in compared):
        mine = [p for p in compared if (p.case.spec, p.case.family) == key]
        yield Found(*key, _error(mine), len(mine))


def _error(found: Sequence[Priced]) -> float:
    return float(np.sqrt(np.mean(np.log([p.ratio for p in found]) ** 2)))


def write_accuracy(found: Sequence[Priced], folder: Path | None = None) -> Iterator[Path]:
    """Write the errors into the files of the specifications they were found with; yield those that were written."""
    errors: dict[str, dict[str, Found]] = {}
    for x in by_bound(found):
        errors.setdefault(x.spec, {})[x.name] = x
    for spec, fields in errors.items():
        if spec not in VALIDATED_ELSEWHERE:
            path = (folder or spec_folder()) / f"{spec}.yaml"
            path.write_text(with_accuracy(path.read_text(), fields, load_spec(spec).numbers_key))
            parse_spec(path.read_text(), path.name)
            yield path


def with_accuracy(text: str, fields: Mapping[str, Found], numbers_key: str) -> str:
    """Return a specification's text with the errors found in place of those it had; others stay."""
    head, mark, section = text.partition("\naccuracy:\n")
    if not mark:
        head, section = text.rstrip("\n") + "\n", ""
    kept = dict(re.findall(r"^  (\w+): *(.*)$", section, re.MULTILINE))
    kept[VALIDATED_WITH] = f'"{numbers_key}"  # these numbers; a file with others is taken as unvalidated'
    for name, x in fields.items():
        note = f"ln(published / predicted) of {x.kernels} kernels {_WHICH[name]}, root mean square: {_RESULTS}"
        kept[name] = f'{{measured: {x.error:.3f}, note: "{note}"}}'
    if "prediction_error" in fields:
        for name, share in RATIOS.items():
            error = share * fields["prediction_error"].error
            kept[name] = f'{{assumed: {error:.3f}, note: "{share:g} of prediction_error, as of a V100"}}'
    lines = [f"  {name}: {kept[name]}" for name in (VALIDATED_WITH, *_WHICH, *RATIOS) if name in kept]
    others = [f"  {name}: {value}" for name, value in kept.items() if name not in (VALIDATED_WITH, *_WHICH, *RATIOS)]
    return "\n".join([head, "accuracy:", *lines, *others]) + "\n"


#: Fields in the order in which they are written, and which kernels they are about.
_WHICH = {
    "prediction_error": "of PyTorch in float32, at their tiles or by the library's policy",
    "compute_error": "of these that are bound by arithmetic",
    "memory_error": "of these that are bound by memory",
    "overhead_error": "of these that are bound by latency or the call",
    "matrix_error": "of an inference framework with bfloat16 products, the best program of each",
}
