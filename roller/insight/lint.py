"""Which sizes of a model its kernels pay for, and the nearest ones that align: predicted, nothing is compiled or run.

A size that fits no transaction, no vector and no fragment of the device leaves part of each idle. For the kernels that
most of the model's time goes to, sizes are padded to multiples of powers of two; a kernel of the padded sizes is
constructed and priced like the kernel itself. What is told is the least padding that keeps the gain.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roller.errors import RollerError, counted
from roller.expr import TensorExpr
from roller.expr.resizing import Size, growing_sizes, resized
from roller.hardware import DeviceSpec
from roller.insight.cost.kernels import Kernels
from roller.insight.cost.operators import check_policy

if TYPE_CHECKING:
    from roller.graph.steps import Program, Run

#: Multiples that sizes are padded to, those that are tried first, and the most that one may grow.
MULTIPLES, FIRST, MOST_GROWTH = (2, 4, 8, 16, 32, 64, 128), (8, 32, 128), 1 / 3
#: A kernel below this share of the model's time is not looked at, and what gains less than this factor is not told.
LEAST_SHARE, LEAST_GAIN = 0.02, 1.05
#: Share of a gain, in time, that less padding must keep to be told instead of more.
_KEPT = 0.9


@dataclass(frozen=True)
class Pad:
    """One size that grows.

    Parameters
    ----------
    value, dim
        Name of a value of the model that has the size, a weight where one has, and the dimension.
    extent, padded
        Elements as they are, and proposed.
    weight
        Whether a weight has the size: the model's author can choose it. Else only who calls the model can.
    """

    value: str
    dim: int
    extent: int
    padded: int
    weight: bool

    def __str__(self) -> str:
        """Return ``fc.weight[1] 1000 -> 1024``."""
        return f"{self.value}[{self.dim}] {self.extent} -> {self.padded}"


@dataclass(frozen=True)
class Advice:
    """What padding one kernel of the model would bring. All times are predicted.

    Parameters
    ----------
    kernel
        What it computes, by the names of the model's nodes.
    runs
        How often the model runs it.
    pads
        Sizes that grow, together.
    seconds, padded_s
        Of one run, as it is and padded.
    share
        Of the model's time that all runs take.
    more_flops
        Operations of the padded kernel over those of the kernel, less one.
    model_gain
        Time of the model over what it would be.
    resource, padded_resource
        What bounds the kernel before and after.
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
        """Time of the kernel over that of the padded one."""
        return self.seconds / self.padded_s

    def __str__(self) -> str:
        """Return the advice as a sentence."""
        pads = ", ".join(map(str, self.pads))
        return f"{self.kernel}: pad {pads}: {self.gain:.2f}x faster predicted, {self.more_flops:+.1%} operations"

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data without the expressions."""
        told = {k: v for k, v in vars(self).items() if k not in ("expression", "padded")}
        return {**told, "pads": [asdict(p) for p in self.pads], "gain": self.gain}


@dataclass(frozen=True)
class Lint:
    """The advice for one model on one device, what saves most first.

    Parameters
    ----------
    device, model
        Names of the specification and the model.
    seconds
        Predicted time of one inference.
    kernels, examined
        Different kernels of the model, and those that were looked at: at least 2 % of its time each, with a size that
        can grow.
    advice
        Every kernel that gains; empty where all sizes align.
    """

    device: str
    model: str
    seconds: float
    kernels: int
    examined: int
    advice: tuple[Advice, ...]

    def __str__(self) -> str:
        """Return the advice, a sentence each."""
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
    """Find the sizes that a device pays for, and the nearest that align.

    Parameters
    ----------
    model
        Path or bytes of an ONNX model, or a ``torch.nn.Module`` with ``examples`` of its arguments.
    device
        A specification, or its name.
    examples
        Arguments of a module, in its order.
    batch, shapes
        As for :func:`roller.compile_model`.
    policy
        Whose kernels: ``"roller"``, the fastest constructed program of each, or ``"library"``, a library's (GPUs).
    least_gain
        Time of a kernel over that of the padded one below which nothing is told (a factor above 1).

    Raises
    ------
    RollerError
        ``least_gain`` is no factor above 1, the policy is unknown, or examples are missing or too many.
    ModelError
        The file is no model, or holds operators that cannot be lowered.

    Notes
    -----
    A kernel is priced alone, at the clock that lasts. Zeros beside the old elements change no result; what pads a
    tensor that is no weight is not priced.
    """
    from roller.arguments import target_of
    from roller.onnx.compile import partitioned, read

    if not (isinstance(least_gain, (int, float)) and 1 < least_gain < math.inf):
        raise RollerError(f"lint: least_gain: expected a factor above 1, got {least_gain!r}. Pass e.g. 1.05.")
    check_policy(policy)
    spec = target_of(device)[0]
    if policy == "library" and not spec.traits.blocks:
        raise RollerError(
            f"lint: policy: expected 'roller' on {spec.name}, got 'library': those described run on GPUs."
        )
    source, name = _source(model, examples)
    program = partitioned(read(source, batch=batch, shapes=shapes))
    return _lint(program, name or program.name, spec, policy, least_gain)


def _source(model: Any, examples: tuple[Any, ...]) -> tuple[Any, str]:
    """Return a model that :func:`read` takes, and a name where it has none of its own."""
    if not hasattr(model, "parameters") or isinstance(model, type):
        if examples:
            raise RollerError(f"lint: expected no examples beside an ONNX model, got {len(examples)}. Leave them out.")
        return model, Path(model).name if isinstance(model, (str, Path)) else ""
    if not examples:
        raise RollerError(
            f"lint: expected examples of the arguments of {type(model).__name__}, got none. Pass them after the device."
        )
    from roller.insight.tracing import need_torch

    need_torch("lint")
    from roller.onnx.torch_export import exported_module

    return exported_module(model, examples), type(model).__name__


def _lint(program: Program, name: str, spec: DeviceSpec, policy: str, least_gain: float) -> Lint:
    from roller.graph.steps import runs_of

    runs = list(runs_of(program.steps))
    uses, first = Counter(r.kernel for r in runs), {r.kernel: r for r in reversed(runs)}
    prices = Kernels(spec.sustained, policy)
    expressions = {key: program.kernels[key].expression for key in uses}
    prices.price_in_parallel(expressions.values())
    found = {key: prices.price_expression(e) for key, e in expressions.items()}
    whole = sum(uses[key] * p.seconds for key, p in found.items())
    sizes = {
        key: [s for s in growing_sizes(expressions[key]) if larger(s.extent)]
        for key, price in found.items() if uses[key] * price.seconds >= LEAST_SHARE * whole
    }  # fmt: skip
    prices.price_in_parallel(grown(expressions[key], c) for key, own in sizes.items() for c in together(own))
    advice = []
    for key, own in sizes.items():
        best = _least_padding(expressions[key], own, prices, least_gain)
        if not best:
            continue
        before, padded = found[key], grown(expressions[key], best)
        after = prices.price_expression(padded)
        advice.append(
            Advice(
                first[key].label, uses[key],
                tuple(_pad(s, e, expressions[key], first[key], program) for s, e in best.items()),
                before.seconds, after.seconds, uses[key] * before.seconds / whole,
                padded.flops / expressions[key].flops - 1 if expressions[key].flops else 0.0,
                whole / (whole - uses[key] * (before.seconds - after.seconds)),
                before.resource, after.resource, expressions[key], padded,
            )
        )  # fmt: skip
    advice.sort(key=lambda a: -a.model_gain)
    return Lint(spec.name, name, whole, len(uses), sum(map(bool, sizes.values())), tuple(advice))


def larger(extent: int) -> list[int]:
    """Return the next multiples of :data:`MULTIPLES` above an extent, the nearest first, each once."""
    found = {-(-extent // m) * m for m in MULTIPLES} - {extent}
    return sorted(e for e in found if e <= extent * (1 + MOST_GROWTH))


def grown(expr: TensorExpr, extents: Mapping[Size, int]) -> TensorExpr:
    """Return an expression with sizes grown."""
    for size, extent in extents.items():
        expr = resized(expr, size, extent)
    return expr


def _least_padding(
    expr: TensorExpr, sizes: Sequence[Size], prices: Kernels, least_gain: float
) -> dict[Size, int]:  # fmt: skip
    """Return the padding of a kernel that gains most, less what gains nothing; empty where none gains.

    Sizes grow together first, for a fragment wants all of its sides; then each shrinks as far as the gain lasts.
    """

    def seconds(extents: Mapping[Size, int]) -> float:
        return prices.price_expression(grown(expr, extents)).seconds

    now, best = seconds({}), min(together(sizes), key=seconds, default={})
    if now < least_gain * seconds(best):
        return {}
    enough = now - _KEPT * (now - seconds(best))
    for size in sorted(best, key=lambda s: -best[s] / s.extent):
        without = {s: e for s, e in best.items() if s != size}
        nearer = [{**without, size: e} for e in larger(size.extent) if e < best[size]]
        best = next((c for c in [without, *nearer] if seconds(c) <= enough), best)
    return best if now >= least_gain * seconds(best) else {}


def together(sizes: Sequence[Size]) -> Iterator[dict[Size, int]]:
    """Yield paddings of all sizes to the same multiple, few of them, each once."""
    seen = set[tuple[int, ...]]()
    for multiple in FIRST:
        extents = {s: _next(s.extent, multiple) for s in sizes}
        chosen = {s: e for s, e in extents.items() if e != s.extent}
        if chosen and tuple(extents.values()) not in seen:
            seen.add(tuple(extents.values()))
            yield chosen


def _next(extent: int, multiple: int) -> int:
    """Return the largest padding of an extent for a multiple that is allowed; the extent where none is."""
    allowed = [e for e in larger(extent) if e <= -(-extent // multiple) * multiple]
    return max(allowed, default=extent)


def _pad(size: Size, padded: int, expr: TensorExpr, run: Run, program: Program) -> Pad:
    """Return a size by the name of a value of the model that has it: a weight, else an input, else an output."""
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
