"""Compiled kernels of this processor: right ones, and the same with one planted error, judged by the check.

What is wrong is decided without the check's bound: a mutant is wrong where an element of its whole output differs from
that of the kernel it was made of by more than eight units in the last place (of the coarsest float dtype on the way, of
the element and of the output's root mean square together), or where integers or NaN differ at all. Mutants of no effect
are counted and left out; those that crash or hang are found by that.
"""

from __future__ import annotations

import mmap
import os
import resource
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

import roller
from benchmarks.check_quality.expressions import random_expression
from benchmarks.check_quality.mutants import KINDS, mutated
from roller import ops
from roller.backends.cpu.launcher import CpuKernel
from roller.errors import RollerError
from roller.expr import Axis, Call, Cast, Index, Load, Stage, Tensor, TensorExpr, Term, axis_index
from roller.hardware import load_spec
from roller.runtime.check import Oracle
from roller.runtime.random_inputs import random_inputs
from roller.templates.cpu.emit import lower_cpu_program
from roller.templates.cpu.emit.build_library import ENTRY, build_library

#: Seconds of processors after which a mutant hangs: how busy the machine is must not look like a finding.
_HANGS_S = 20
#: A child that has not ended by then says nothing of its mutant (seconds), and how often it is looked at.
_PATIENT_S, _POLL_S = 600.0, 0.005
#: How a child ends that could not run its mutant.
_NOT_RUN = 3
#: Units in the last place from which an element differs.
_ULPS = 8.0
_EPS = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
ONE_OUTPUT = "one output"


@dataclass(frozen=True)
class Outcome:
    """One kernel: its seed, how it was changed (empty: not at all), what came of it and, in words, where.

    ``result`` is ``right`` or ``refused``, ``found``, ``missed``, ``crashed`` or ``no effect``, ``not built`` or
    ``not run``.
    """

    seed: int
    kind: str
    result: str
    expression: str
    text: str = ""
    whole: bool = True


def _gather(n: int, r: int, high: int, low: int) -> TensorExpr:
    """Return a sum whose access jumps at multiples of two numbers that are almost equal."""
    jumps = (n - 1) // low
    place = Index((Term("a", 1, high), Term("a", -1, low)), jumps)
    axes = (Axis("a", n), Axis("r", r, "reduction"))
    x = Load("X", (place, axis_index("a"), axis_index("r", -1, r - 1)))
    stage = Stage(Tensor("S", (n,)), axes, (axis_index("a"),), Call("mul", (x, Load("Y", (axis_index("r"),)))), "sum")
    return TensorExpr("jumps", (Tensor("X", (jumps + (n - 1) // high + 1, n, r)), Tensor("Y", (r,))), (stage,), ("S",))


def _repeat(shape: Sequence[int], by: int) -> TensorExpr:
    axes = tuple(Axis(f"a{d}", n * by) for d, n in enumerate(shape))
    load = Load("X", tuple(Index((Term(a.name, 1, by),)) for a in axes))
    store = tuple(axis_index(a.name) for a in axes)
    body = Cast("float32", Call("add", (load, load)))
    return TensorExpr("repeat", (Tensor("X", tuple(shape)),),
                      (Stage(Tensor("Y", tuple(a.extent for a in axes)), axes, store, body),), ("Y",))  # fmt: skip


def subject(seed: int) -> TensorExpr:
    """Return the expression of a seed: an operator or a random one, below and above what is compared whole."""
    rng = np.random.default_rng(seed)
    n = [int(x) for x in rng.integers(3, 40, 4)]
    large = rng.random() < 0.5
    b = 4 if large else 1
    makers = [
        lambda: ops.matmul(n[0] * 3 * b, n[1] * 2 * b, n[2] * b, epilogue=("relu", "gelu", "softplus")[n[3] % 3]),
        lambda: ops.matmul(n[0] * b, n[1], 700 + n[2]),
        lambda: ops.matmul(n[0], n[1], n[2], dtype="int8"),
        lambda: ops.conv2d(1, n[0], 5 + n[1] // 2, 7 + n[2] // 2, 8 * b + n[3], 3, 3, padding=1, stride=1 + n[3] % 2),
        lambda: ops.conv2d(2, 8, 9, 11, 12 * b, 5, 5, groups=4),
        lambda: ops.pool2d("max", b, n[0], 9 + n[1], 8 + n[2], 3, 3, stride=2, padding=1),
        lambda: ops.softmax((n[0] * 8 * b, n[1] * 9)),
        lambda: ops.layer_norm((n[0] * 4 * b, n[1] * 7)),
        lambda: ops.reduce("sum", (n[0] * b, 500 * n[1]), axes=(1,)),
        lambda: ops.reduce("argmax", (n[0] * b, 30 * n[1]), axes=(1,)),
        lambda: ops.elementwise(("sigmoid", "relu", "exp")[n[0] % 3], (n[1] * 37, n[2] * 10 * b * b)),
        lambda: _gather(20_000 * b * b, 3, 6666 * b * b, 6666 * b * b + 3),
        lambda: _repeat((n[0] * b, n[1] * b), 3),
        lambda: random_expression(seed, 60_000 * b if large else 4000),
        lambda: random_expression(seed, 900_000 if large else 3000),
    ]  # fmt: skip
    made: TensorExpr = makers[seed % len(makers)]()
    return made


class Shared:
    """Outputs that a forked process writes and this one reads."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.arrays = []
        for t in tensors:
            memory = mmap.mmap(-1, max(t.nbytes, 1) + 64)
            self.arrays.append(np.frombuffer(memory, np.uint8)[: t.nbytes].view(t.dtype).reshape(t.shape))

    def fill(self) -> None:
        """Poison what is there."""
        for a in self.arrays:
            a.reshape(-1).view(np.uint8).fill(0xFF)


def _run_apart(artifact: Any, inputs: list[np.ndarray], shared: Shared) -> tuple[str, str]:
    """Run a kernel in a process of its own; return ``crashed`` or ``not run`` and why, or two empty texts."""
    shared.fill()
    child = os.fork()
    if child == 0:
        try:
            resource.setrlimit(resource.RLIMIT_CPU, (_HANGS_S, 2 * _HANGS_S))
            run, result = CpuKernel(artifact).bind(*inputs)
            outputs = result if isinstance(result, tuple) else (result,)
            for out in outputs:
                out.reshape(-1).view(np.uint8).fill(0xFF)
            run()
            for target, out in zip(shared.arrays, outputs, strict=True):
                target[...] = out
            os._exit(0)
        except BaseException:  # noqa: BLE001 - a child must never come back
            os._exit(_NOT_RUN)
    end = time.monotonic() + _PATIENT_S
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return _ending(status)
        time.sleep(_POLL_S)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "not run", "has not ended"


def _ending(status: int) -> tuple[str, str]:
    """Return what the end of a child says: a fault is one of the mutant's, but not what the system or Python did."""
    if os.WIFEXITED(status):
        return ("", "") if os.WEXITSTATUS(status) == 0 else ("not run", f"exit status {os.WEXITSTATUS(status)}")
    number = signal.Signals(os.WTERMSIG(status))
    if number == signal.SIGKILL:  # of a system without memory
        return "not run", number.name
    return "crashed", f"more than {_HANGS_S} s of processors" if number == signal.SIGXCPU else number.name


def differs(expr: TensorExpr, right: Sequence[np.ndarray], other: Sequence[np.ndarray]) -> int:
    """Return how many elements of the outputs differ by more than rounding could explain."""
    eps = max((_EPS.get(d, 0.0) for s in expr.stages for d in (s.output.dtype, s.acc_dtype)), default=0.0)
    eps = max(eps, max((_EPS.get(t.dtype, 0.0) for t in expr.inputs), default=0.0))
    count = 0
    for a, b in zip(right, other, strict=True):
        if a.dtype.kind in "iub":
            count += int(np.sum(a != b))
            continue
        x, y = a.astype(np.float64), b.astype(np.float64)
        with np.errstate(all="ignore"):
            finite = np.abs(x[np.isfinite(x)])
            scale = float(np.sqrt(np.mean(finite**2))) if finite.size else 0.0
            far = ~(np.abs(x - y) <= _ULPS * eps * (np.abs(x) + scale))
        same = (x == y) | (np.isnan(x) & np.isnan(y))
        count += int(np.sum(far & ~same))
    return count


def judged(seed: int, each: int) -> Iterator[Outcome]:
    """Compile the kernel of a seed, judge it, then ``each`` mutants of it."""
    expr, spec = subject(seed), load_spec("cpu")
    rng = np.random.default_rng(seed)
    try:
        found = roller.construct(expr, spec.emitted, top_k=8)
        program = found[int(rng.integers(len(found)))].program
        artifact = lower_cpu_program.lower(program, expr, spec.target["mcpu"], 1, spec.name, spec.teu.lanes * 4)
    except RollerError as err:
        yield Outcome(seed, "", "not built", expr.name, str(err)[:200])
        return
    inputs, shared = random_inputs(expr, seed), Shared(expr.output_tensors)
    oracle = Oracle(expr, inputs, seed)
    oracle.cover([program], inputs)
    whole = sum(len(p) for p in oracle.points) == sum(t.elements for t in expr.output_tensors)
    ended, reason = _run_apart(artifact, inputs, shared)
    if ended == "not run":
        yield Outcome(seed, "", ended, expr.name, reason)
        return
    right = [a.copy() for a in shared.arrays]
    outcome = oracle.check(right) if not ended else None
    text = f"{ended}: {reason}" if outcome is None else outcome.message
    yield Outcome(seed, "", "right" if outcome is not None and outcome.ok else "refused", expr.name, text, whole)
    if outcome is None or not outcome.ok:
        return
    module, _, names = lower_cpu_program.lower_module(program, 1)
    if set(names) != {ENTRY}:
        return
    for n in range(each):
        yield replace(_mutant(seed, n, expr, artifact, module, inputs, shared, right, oracle, whole), whole=whole)


def _mutant(
    seed: int, n: int, expr: TensorExpr, artifact: Any, module: Any, inputs: list[np.ndarray], shared: Shared,
    right: list[np.ndarray], oracle: Oracle, whole: bool,
) -> Outcome:  # fmt: skip
    rng = np.random.default_rng([seed, n])
    kinds = [*KINDS, ONE_OUTPUT] if whole else list(KINDS)
    kind = kinds[int(rng.integers(len(kinds)))]
    if kind == ONE_OUTPUT:
        made = [a.copy() for a in right]
        a = made[0].reshape(-1)
        at = int(rng.integers(a.size))
        a[at] = a[at] ^ True if a.dtype == np.bool_ else a[at] + np.maximum(1, np.abs(a[at]) // 2)
    else:
        body = mutated(module[ENTRY].body, kind, rng)
        if body is None:
            return Outcome(seed, kind, "no effect", expr.name, "no place for it")
        try:
            changed = type(module)({ENTRY: module[ENTRY].with_body(body)})
            binary = build_library(changed, load_spec("cpu").target["mcpu"], 1)
        except Exception as err:  # noqa: BLE001 - TVM raises many types at programs that make no sense
            return Outcome(seed, kind, "not built", expr.name, str(err)[-200:])
        ended, reason = _run_apart(artifact.with_binary(binary), inputs, shared)
        if ended:
            return Outcome(seed, kind, ended, expr.name, reason)
        made = [a.copy() for a in shared.arrays]
    wrong = differs(expr, right, made)
    if not wrong:
        return Outcome(seed, kind, "no effect", expr.name)
    outcome = oracle.check(made)
    share = f"{wrong} of {sum(a.size for a in right)} wrong"
    return Outcome(seed, kind, "missed" if outcome.ok else "found", expr.name, share)


def compiled(seed: int, each: int) -> list[dict[str, Any]]:
    """Judge a compiled kernel and ``each`` mutants; outcomes as JSON."""
    return [asdict(o) for o in judged(seed, each)]
