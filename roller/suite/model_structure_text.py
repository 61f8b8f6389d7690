"""The structure of a model as text, for comparing implementations or PyTorch releases."""

from __future__ import annotations

import difflib
import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from roller.errors import RollerError, shown
from roller.insight.trace.trace import Trace
from roller.suite.entry import SuiteModel
from roller.suite.tracing import trace_workload
from roller_runtime.core.files import read_file


@dataclass(frozen=True)
class Digest:
    """The structure of a model."""

    model: str
    batch: int  # number of samples in the step whose operators are counted
    parameters: int  # number of elements in all parameters
    # One line per module without children (path, class and settings) and per parameter
    modules: tuple[str, ...] = field(repr=False)
    # One line per distinct operator of a steady step: count, phase, name and input shapes
    operators: tuple[str, ...] = field(repr=False)

    @property
    def modules_key(self) -> str:
        """Short hash of ``modules``, equal for equal layers, sizes and names."""
        return _short_hash(self.modules)

    @property
    def operators_key(self) -> str:
        """Short hash of ``operators``, which also depends on the release of PyTorch."""
        return _short_hash(self.operators)

    def difference(self, other: Digest) -> tuple[str, ...]:
        """Return the lines that appear only in this digest (``-``) or only in the other one (``+``)."""
        mine, others = ((*x.modules, *x.operators) for x in (self, other))
        lines = difflib.unified_diff(mine, others, n=0, lineterm="")
        return tuple(line for line in lines if not line.startswith(("---", "+++", "@@")))

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return {
            "model": self.model, "batch": self.batch, "parameters": self.parameters, "modules_key": self.modules_key,
            "operators_key": self.operators_key, "modules": list(self.modules), "operators": list(self.operators),
        }  # fmt: skip


def read_digests(path: Path) -> Mapping[str, Digest]:
    """Return the digests in a file written by ``roller suite digest --out``, keyed by model."""
    try:
        rows = json.loads(read_file(path))
        found = [
            Digest(
                str(row["model"]), int(row["batch"]), int(row["parameters"]), tuple(map(str, row["modules"])),
                tuple(map(str, row["operators"])),
            )
            for row in rows
        ]  # fmt: skip
    except (OSError, ValueError, RecursionError, KeyError, TypeError) as error:
        raise RollerError(
            f"{path}: expected the JSON of digests, got {shown(str(error))}. Write it with `roller suite digest --out "
            f"FILE`."
        ) from error
    return {one.model: one for one in found}


def _short_hash(lines: tuple[str, ...]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]


def digest_model(model: SuiteModel, *, reduced: bool = False, batch: int | None = None) -> Digest:
    """Return a model's digest, with the operators of an sm_80 GPU at ``batch`` (by default, the model's own batch)."""
    import torch

    workload = model.workload(reduced=reduced)
    with torch.device("meta"):
        module = workload.build()
    step = trace_workload(model.name, workload, batch=batch)
    return Digest(
        model.name, workload.batch if batch is None else batch, sum(p.numel() for p in module.parameters()),
        tuple(_module_lines(module)), tuple(_operator_lines(step)),
    )  # fmt: skip


def _module_lines(module: Any) -> Iterator[str]:
    for path, part in module.named_modules():
        if next(part.children(), None) is None:
            yield f"{path}: {type(part).__name__}({part.extra_repr()})"
    for path, parameter in module.named_parameters():
        yield f"{path}: {list(parameter.shape)} {str(parameter.dtype).removeprefix('torch.')}"


def _operator_lines(step: Trace) -> Iterator[str]:
    counts = Counter((o.phase, o.name, o.input_shapes) for o in step.steady())
    for (phase, name, shapes), count in sorted(counts.items()):
        yield f"{count} x {phase} {name} {' '.join(str(list(shape)) for shape in shapes)}".rstrip()
