"""Run a case as a user would, between protected pages, and judge it by what knows nothing of roller.

A case is plain data: ``{"generator": ..., "seed": ..., ...}``. Every candidate a case asks for is lowered, run and
judged
by itself: by an independent computation, and by roller's own check, whose word is compared with it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tvm

from tests.fuzz.arrays import Guarded, guarded, inputs_of
from tests.fuzz.interpret import Interval, Invalid, difference, interpret
from tests.fuzz.language import Data, as_te, dtypes_of
from tests.fuzz.verdict import BOUNDS, CAUGHT, NO_KERNEL, OK, RIGHT_REFUSED, SKIPPED, WRONG, Verdict, refusal

#: Says why outputs are wrong, or nothing.
Judge = Callable[[Sequence[np.ndarray]], str]
#: Runs kernels of an expression on arrays, and has the outputs judged.
Runs = Callable[[Any, Mapping[str, np.ndarray], Judge], Verdict]
#: Told what is being done, so that whoever sees the process die knows.
Report = Callable[[str], None]

JUDGES: dict[str, Callable[[Data, Report], Verdict]] = {}


def judges(name: str) -> Callable[[Callable[[Data, Report], Verdict]], Callable[[Data, Report], Verdict]]:
    """Register the decorated function as what judges cases of a generator."""

    def register(function: Callable[[Data, Report], Verdict]) -> Callable[[Data, Report], Verdict]:
        JUDGES[name] = function
        return function

    return register


def load_all() -> None:
    """Load what judges the cases of every generator."""
    import tests.fuzz.calls
    import tests.fuzz.gpu
    import tests.fuzz.models
    import tests.fuzz.operators  # noqa: F401 - they register themselves


def judged(case: Data, report: Report = lambda _: None) -> Verdict:
    """Return the verdict on a case; whatever is raised is one."""
    load_all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", category=RuntimeWarning, module="tests")
        try:
            return JUDGES[case["generator"]](case, report)
        except Invalid as why:
            return Verdict(SKIPPED, str(why))
        except Exception as error:  # noqa: BLE001 - a failure is a finding
            return refusal(error, "case")


def options_of(case: Data) -> Any:
    """Return the ConstructOptions of a case."""
    import roller

    given = dict(case.get("options", {}))
    return roller.ConstructOptions(**given, constants=tuple(case.get("constants", ())))


@judges("expressions")
def expression(case: Data, report: Report) -> Verdict:
    """Judge an expression of a user's own on this machine's processor."""
    return own_expression(case, lambda expr, arrays, judge: on_cpu(case, expr, arrays, judge, report))


def own_expression(case: Data, run: Runs) -> Verdict:
    """Read the expression of a case, interpret it, and have its kernels run on its arrays and judged by that."""
    from roller.te.reader import read

    described = case["expression"]
    arrays = inputs_of(described["inputs"], case["seed"], case.get("special", False))
    expected, dtypes = interpret(described, arrays), dtypes_of(described)
    try:  # TVM refuses literals that their new dtype cannot hold, before roller sees them
        written = as_te(described)
    except (
        ValueError,
        tvm.error.InternalError,
    ) as error:
        raise Invalid(f"TVM: {error}") from error
    try:
        expr = read(written)
    except Exception as error:  # noqa: BLE001
        return refusal(error, "read")
    return run(expr, arrays, lambda outputs: wrong_outputs(expected, dtypes, outputs))


def wrong_outputs(expected: Mapping[str, Interval], dtypes: Mapping[str, str], outputs: Sequence[np.ndarray]) -> str:
    """Say which output lies outside its interval."""
    for (name, interval), got in zip(expected.items(), outputs, strict=True):
        why = difference(np.asarray(got), interval, dtypes[name])
        if why:
            return f"output '{name}': {why}"
    return ""


def on_cpu(case: Data, expr: Any, arrays: Mapping[str, np.ndarray], judge: Judge, report: Report) -> Verdict:
    """Compile an expression for this machine as the case says, and judge every candidate it names."""
    from roller.runtime.check import Oracle

    if case.get("how"):
        try:
            return _public(case, expr, arrays, judge, report)
        except Exception as error:  # noqa: BLE001
            return refusal(error, "construct")
    oracle: list[Any] = []

    def one(artifact: Any, what: str) -> Verdict:
        if not oracle:
            oracle.append(None if case.get("special") else Oracle(expr, list(arrays.values())))
        return _candidate(artifact, case, arrays, judge, oracle[0], report, what)

    return each_candidate(case, expr, "cpu", one, report)


def each_candidate(case: Data, expr: Any, device: str, one: Callable[[Any, str], Verdict], report: Report) -> Verdict:
    """Construct and lower every candidate of a case, and have each judged; the first finding is the verdict."""
    import roller
    from roller.compiler.pipeline import lower
    from roller.construction.constructor import spec_of_device_share
    from roller.hardware import load_spec

    report("constructing")
    try:
        options = options_of(case)
        found = roller.construct(expr, device, options=options)
    except Exception as error:  # noqa: BLE001
        return refusal(error, "construct")
    spec = spec_of_device_share(load_spec(device), options)
    refused: list[Verdict] = []
    for candidate in found:
        what = f"{device} {candidate.program.structure} {candidate.program.tiles}"
        report(f"lowering {what}")
        try:
            artifact = lower(candidate.program, expr, spec)
        except Exception as error:  # noqa: BLE001
            refused.append(refusal(error, "lower"))
            continue
        verdict = one(artifact, what)
        if not verdict.fine:
            return verdict
    if refused and len(refused) == len(found):
        worst = next((v for v in refused if not v.fine), refused[0])
        return worst if not worst.fine else Verdict(NO_KERNEL, worst.message)
    return next((v for v in refused if v.kind not in ("refused", "unclear refusal")), Verdict(OK))


def _candidate(
    artifact: Any, case: Data, arrays: Mapping[str, np.ndarray], judge: Judge, oracle: Any, report: Report, what: str
) -> Verdict:
    from dataclasses import replace

    from roller.backends.cpu.launcher import CpuKernel

    values = list(arrays.values())
    held = tuple(replace(c, values=np.ascontiguousarray(values[c.position]).tobytes()) for c in artifact.constants)
    kernel = CpuKernel(replace(artifact, constants=held))
    positions = {c.position for c in artifact.constants}
    for at_end in (True, False):
        outputs = _run(kernel, artifact.expression, arrays, positions, at_end, report, what)
        why = judge(outputs)
        allowed = oracle.check(outputs) if oracle is not None else None
        if why and allowed is not None and not allowed.ok:
            return Verdict(CAUGHT, f"{what}: {why}")
        if why:
            return Verdict(WRONG, f"{what}: {why}")
        if allowed is not None and not allowed.ok:
            return Verdict(RIGHT_REFUSED, f"{what}: {allowed.message}")
    return Verdict(OK)


def _run(
    kernel: Any,
    expr: Any,
    arrays: Mapping[str, np.ndarray],
    constants: set[int],
    at_end: bool,
    report: Report,
    what: str,
) -> list[np.ndarray]:
    dtypes = {t.name: t.dtype for t in expr.inputs}
    inputs = guarded(dict(zip(dtypes, arrays.values(), strict=True)), dtypes, at_end)
    outputs = [Guarded(t.shape, t.dtype, at_end) for t in expr.output_tensors]
    out = tuple(o.array for o in outputs)
    changing = [g.array for n, g in enumerate(inputs.values()) if n not in constants]
    report(f"running {what}: arrays {'end' if at_end else 'begin'} at a protected page")
    kernel(*changing, out=out if len(out) > 1 else out[0])
    report("judging")
    return [o.array for o in outputs]


def _public(case: Data, expr: Any, arrays: Mapping[str, np.ndarray], judge: Judge, report: Report) -> Verdict:
    """Compile by the public function and run what it returns."""
    import roller

    names = list(case.get("constants", ()))
    constants = {
        n: np.array(a) for (n, a) in zip([t.name for t in expr.inputs], arrays.values(), strict=True) if n in names
    }
    report("compiling")
    try:
        kernel = roller.compile(
            expr,
            "cpu",
            options=options_of({**case, "constants": ()}),
            constants=constants or None,
            seed=case["seed"],
            cache=False,
            **case["how"],
        )
    except roller.errors.NoCandidateError as error:
        verdict = refusal(error, "compile")
        # Who forbids padding may be left without a program, and is told so; anybody else is not.
        forbidden = case.get("options", {}).get("epsilon", 1.0) < 1.0
        return verdict if not verdict.fine or forbidden else Verdict(NO_KERNEL, verdict.message)
    positions = {n for n, t in enumerate(expr.inputs) if t.name in names}
    for at_end in (True, False):
        outputs = _run(kernel, expr, arrays, positions, at_end, report, f"{kernel.program.structure}")
        why = judge(outputs)
        if why:
            return Verdict(WRONG, f"compiled: {kernel.program.structure} {kernel.program.tiles}: {why}")
    return Verdict(OK)


def died(phase: str, how: str) -> Verdict:
    """Return the verdict on a case whose process died."""
    outside = phase.startswith("running") and how in ("SIGSEGV", "SIGBUS")
    return Verdict(BOUNDS if outside else "crash", f"{how} while {phase}")
