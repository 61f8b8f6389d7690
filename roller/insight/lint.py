"""Finds sizes that slow down a model's kernels, and the nearest aligned sizes, by prediction alone.

A size that is not a multiple of the device's transaction, vector and fragment sizes leaves part of each idle. For
kernels that take at least 2 % of the model's time, sizes are padded to multiples of powers of two, and a kernel with
the padded sizes is constructed and priced like the original. The advice is the smallest padding that keeps the gain.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roller.errors import RollerError, counted
from roller.expr import TensorExpr
from roller.expr.sizes_growable_by_padding import GrowableSize, growing_sizes
from roller.hardware import DeviceSpec
from roller.insight.cost.kernel_prices import KernelPricer
from roller.insight.cost.operator_price import check_policy_is_known
from roller.insight.cost.worthwhile_size_padding import (
    LEAST_GAIN,
    LEAST_SHARE,
    allowed_padded_extents,
    enlarge_sizes,
    paddings_to_common_multiples,
    smallest_worthwhile_padding,
)

if TYPE_CHECKING:
    from roller_runtime.plan.program_steps import Program, Run


@dataclass(frozen=True)
class Pad:
    """One padded size.

    Parameters
    ----------
    value, dim
        Name of a value in the model that has this size, preferably a weight, and the dimension with this size.
    extent, padded
        Current and proposed number of elements.
    weight
        Whether a weight has the size, so that the model's author can choose it; otherwise, only the model's caller can.
    """

    value: str
    dim: int
    extent: int
    padded: int
    weight: bool

    def __str__(self) -> str:
        """Return the padding as text, e.g. ``fc.weight[1] 1000 -> 1024``."""
        return f"{self.value}[{self.dim}] {self.extent} -> {self.padded}"


@dataclass(frozen=True)
class Advice:
    """The effect of padding one kernel of the model. All times are predicted.

    Parameters
    ----------
    kernel
        The kernel, identified by the names of the nodes that it computes.
    runs
        Number of times that the kernel runs in the model.
    pads
        Sizes that are padded together.
    seconds, padded_s
        Time of one run without and with padding.
    share
        Share of the model's time that all runs of the kernel take.
    more_flops
        Operations of the padded kernel divided by those of the original kernel, minus one.
    model_gain
        Time of the model divided by its time with the padding.
    resource, padded_resource
        Resource that bounds the kernel before and after padding.
    expression, padded
        Both kernels, to construct, explain or compile.
    """

    kernel: str
    runs: int
    pads: tuple[Pad, ...]
    seconds: float
    padded_s: float
    share: float
    more_flops: float
    model_gain: float
    resource: str
    padded_resource: str
    expression: TensorExpr = field(repr=False)
    padded: TensorExpr = field(repr=False)

    @property
    def gain(self) -> float:
        """Time of the original kernel divided by the time of the padded kernel."""
        return self.seconds / self.padded_s

    def __str__(self) -> str:
        """Return the advice as a sentence."""
        pads = ", ".join(map(str, self.pads))
        return f"{self.kernel}: pad {pads}: {self.gain:.2f}x faster predicted, {self.more_flops:+.1%} operations"

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data without the expressions."""
        details = {k: v for k, v in vars(self).items() if k not in ("expression", "padded")}
        return {**details, "pads": [asdict(p) for p in self.pads], "gain": self.gain}


@dataclass(frozen=True)
class Lint:
    """The advice for one model on one device, largest gain first.

    Parameters
    ----------
    device, model
        Names of the specification and the model.
    seconds
        Predicted time of one inference.
    kernels, examined
        Number of distinct kernels in the model, and number of examined kernels, i.e. those that take at least 2 % of
        its time and have a size that can be padded.
    advice
        Advice for every kernel that gains from padding; empty if none does.
    """

    device: str
    model: str
    seconds: float
    kernels: int
    examined: int
    advice: tuple[Advice, ...]

    def __str__(self) -> str:
        """Return a summary of the model and one sentence per advised padding."""
        first = (
            f"{self.model} on {self.device}: {self.seconds * 1e3:.3f} ms predicted, {counted(self.kernels, 'kernel')}"
        )
        return "\n".join([first, *map(str, self.advice)] if self.advice else [f"{first}: nothing to gain"])

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data; every time is predicted."""
        data = {k: v for k, v in vars(self).items() if k != "advice"}
        return {"kind": "predicted", **data, "advice": [a.to_dict() for a in self.advice]}


def lint(
    model: Any,
    device: str | DeviceSpec,
    *examples: Any,
    batch: int | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    policy: str = "roller",
    least_gain: float = LEAST_GAIN,
) -> Lint:
    """Find sizes in a model that slow down its kernels on a device, and the nearest aligned sizes.

    Parameters
    ----------
    model
        Path or bytes of an ONNX model, or a ``torch.nn.Module``, which needs ``examples`` of its arguments.
    device
        A specification or its name.
    examples
        Example arguments of a module, in order.
    batch, shapes
        See :func:`roller.compile_model`.
    policy
        Policy that chooses the kernels: ``"roller"``, the fastest constructed programs, or ``"library"``, a library's
        kernels (GPUs only).
    least_gain
        Smallest ratio of a kernel's time to its padded time for which padding is advised (a factor above 1).

    Raises
    ------
    RollerError
        If ``least_gain`` is not a factor above 1, the policy is unknown, or there are too few or too many examples.
    ModelError
        If the file is not a model, or contains operators that cannot be lowered.

    Notes
    -----
    Each kernel is priced alone, at the sustained clock. Padding with zeros does not change any result; the time to pad
    tensors other than weights is not priced.
    """
    from roller.compile_arguments import spec_and_local_device
    from roller.models.compile import partition_graph, read_folded_graph

    if not (isinstance(least_gain, (int, float)) and 1 < least_gain < math.inf):
        raise RollerError(f"lint: least_gain: expected a factor above 1, got {least_gain!r}. Pass e.g. 1.05.")
    check_policy_is_known(policy)
    spec = spec_and_local_device(device)[0]
    if policy == "library" and not spec.traits.blocks:
        raise RollerError(
            f"lint: policy: expected 'roller' on {spec.name}, got 'library': those described run on GPUs."
        )
    source, name = _model_to_read_and_name(model, examples)
    program = partition_graph(read_folded_graph(source, batch=batch, shapes=shapes))
    return _lint_program(program, name or program.name, spec, policy, least_gain)


def _model_to_read_and_name(model: Any, examples: tuple[Any, ...]) -> tuple[Any, str]:
    """Return a model in a form that :func:`read_folded_graph` takes, and its file's or class's name, else ``""``."""
    if not hasattr(model, "parameters") or isinstance(model, type):
        if examples:
            raise RollerError(f"lint: expected no examples beside an ONNX model, got {len(examples)}. Leave them out.")
        return model, Path(model).name if isinstance(model, (str, Path)) else ""
    if not examples:
        raise RollerError(
            f"lint: expected examples of the arguments of {type(model).__name__}, got none. Pass them after the device."
        )
    from roller.insight.tracing import require_torch

    require_torch("lint")
    from roller.models.torch.export_to_onnx import export_module

    return export_module(model, examples), type(model).__name__


def _lint_program(program: Program, name: str, spec: DeviceSpec, policy: str, least_gain: float) -> Lint:
    from roller_runtime.plan.program_steps import iterate_kernel_runs

    runs = list(iterate_kernel_runs(program.steps))
    uses, first = Counter(r.kernel for r in runs), {r.kernel: r for r in reversed(runs)}
    prices = KernelPricer(spec.sustained, policy)
    expressions = {key: program.kernels[key].expression for key in uses}
    prices.price_expressions_in_parallel(expressions.values())
    found = {key: prices.price_expression(e) for key, e in expressions.items()}
    whole = sum(uses[key] * p.seconds for key, p in found.items())
    sizes = {
        key: [s for s in growing_sizes(expressions[key]) if allowed_padded_extents(s.extent)]
        for key, price in found.items() if uses[key] * price.seconds >= LEAST_SHARE * whole
    }  # fmt: skip
    prices.price_expressions_in_parallel(
        enlarge_sizes(expressions[key], c) for key, own in sizes.items() for c in paddings_to_common_multiples(own)
    )
    advice = []
    for key, own in sizes.items():
        best = smallest_worthwhile_padding(expressions[key], own, prices, least_gain)
        if not best:
            continue
        before, padded = found[key], enlarge_sizes(expressions[key], best)
        after = prices.price_expression(padded)
        advice.append(
            Advice(
                first[key].label, uses[key],
                tuple(_pad_named_after_weight(s, e, expressions[key], first[key], program) for s, e in best.items()),
                before.seconds, after.seconds, uses[key] * before.seconds / whole,
                padded.flops / expressions[key].flops - 1 if expressions[key].flops else 0.0,
                whole / (whole - uses[key] * (before.seconds - after.seconds)),
                before.resource, after.resource, expressions[key], padded,
            )
        )  # fmt: skip
    advice.sort(key=lambda a: -a.model_gain)
    return Lint(spec.name, name, whole, len(uses), sum(map(bool, sizes.values())), tuple(advice))


def _pad_named_after_weight(size: GrowableSize, padded: int, expr: TensorExpr, run: Run, program: Program) -> Pad:
    """Return the padding of a size, named after a weight with that size if any, otherwise after an input or output."""
    names = dict(
        itertools.chain(
            zip((t.name for t in expr.inputs), run.inputs, strict=True), zip(expr.outputs, run.outputs, strict=True)
        )
    )
    constants = set(program.constants)
    held = [(names[t], position) for t, position in size.dims if t in names]
    held.sort(key=lambda x: x[0] not in constants)
    value, dim = held[0] if held else (size.name, 0)
    return Pad(value, dim, size.extent, padded, value in constants)
