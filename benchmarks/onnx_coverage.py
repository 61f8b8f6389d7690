"""ONNX's own node tests: which of them roller passes, and why it refuses the others.

``python -m benchmarks.onnx_coverage`` compiles every one of them and prints those that are wrong; with ``--evaluate``
kernels are computed by their definition, which takes seconds and says the same of reading, lowering and partition.
``docs/onnx_operators.py`` writes the result down.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from benchmarks.onnx_backend import Prepared, RollerBackend, plain
from roller.errors import RollerError

PASSED, REFUSED, WRONG, EXCEPTED = "passed", "refused", "wrong", "excepted"

_CORNERS = (
    "with align_corners the specification divides by length_resized - 1, 'the length of the resized tensor in axis x'; "
    "the test takes the scale times the old length, which may be fractional (ONNX Runtime and PyTorch take the length)"
)
#: Tests that expect something else than the specification says, and its words.
EXCEPTIONS = {
    f"test_resize_downsample_scales_{mode}_align_corners": f"Resize: {_CORNERS}" for mode in ("linear", "cubic")
}


@dataclass(frozen=True)
class Verdict:
    """What became of one test.

    Parameters
    ----------
    name
        Of the test.
    operator
        The operator it tests.
    float32
        Whether an input or output of the model is float32.
    outcome
        ``"passed"``, ``"refused"``, ``"wrong"``, or ``"excepted"`` where the test is not what the specification says.
    reason
        Why it is refused or excepted, or what was wrong.
    """

    name: str
    operator: str
    float32: bool
    outcome: str
    reason: str = ""


def cases(matching: str = "") -> list[Any]:
    """Return ONNX's node tests whose name contains ``matching``, in their order."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        return [c for c in collect_testcases(None) if matching in c.name]


def judged(case: Any, *, evaluated: bool) -> Verdict:
    """Return the verdict on one test, by the tolerances of the suite."""
    graph = case.model.graph
    kinds = {v.type.tensor_type.elem_type for v in (*graph.input, *graph.output)}
    about = case.name, _operator(case), onnx.TensorProto.FLOAT in kinds
    try:
        try:
            _run(case, RollerBackend.prepare(case.model, evaluated=evaluated))
        except _Tie:
            if not evaluated:
                raise
            # In float64 a half may round the other way; node by node every value is rounded as the suite's are.
            _run(case, Prepared(case.model, True, {}, fused=False))
    except RollerError as refusal:
        return Verdict(*about, REFUSED, reason_of(str(refusal)))
    except Exception as failure:  # noqa: BLE001 - whatever else happens is a defect to be listed
        if case.name in EXCEPTIONS and isinstance(failure, AssertionError):
            return Verdict(*about, EXCEPTED, EXCEPTIONS[case.name])
        return Verdict(*about, WRONG, f"{type(failure).__name__}: {' '.join(str(failure).split())[:300]}")
    return Verdict(*about, PASSED)


class _Tie(AssertionError):
    """Whole numbers that differ by no more than one."""


def _run(case: Any, prepared: Prepared) -> None:
    for inputs, wanted in case.data_sets:
        for got, expected in zip(prepared.run(inputs), wanted, strict=True):
            _compare(np.asarray(got), expected, case.rtol, case.atol)


def _operator(case: Any) -> str:
    """Return the operator a test is about: that of its single node, or the function its nodes spell out."""
    nodes = case.model.graph.node
    if len(nodes) == 1 and not case.name.endswith("_expanded"):
        return str(nodes[0].op_type)
    spelled = re.match(rf"(\w+?)_{re.escape(case.name)}_function", next((o for o in nodes[0].output), ""))
    return spelled[1] if spelled else str(nodes[0].op_type)


def _compare(got: np.ndarray, expected: Any, rtol: float, atol: float) -> None:
    """Hold a result to what the suite expects, by its tolerances.

    Where 16 bits hold the result a difference of two units in the last place passes, too: the suite rounds after every
    node, and a kernel that fuses several only once. What is rounding beside the largest element (less than 2**-22 of
    it, where terms cancel) is held to that element, not to itself.
    """
    wanted = np.asarray(plain(expected))
    if (got.shape, got.dtype) != (wanted.shape, wanted.dtype):
        raise AssertionError(f"expected {wanted.dtype}{wanted.shape}, got {got.dtype}{got.shape}")
    if wanted.dtype.kind in "iub":
        try:
            np.testing.assert_array_equal(got, wanted)
        except AssertionError as error:
            near = wanted.dtype.kind != "b" and np.abs(got.astype(np.int64) - wanted.astype(np.int64)).max() <= 1
            raise (_Tie if near else AssertionError)(str(error)) from None
        return
    if wanted.dtype.itemsize == 2:
        rtol = max(rtol, 2.0 ** (-6 if wanted.dtype.name == "bfloat16" else -9))
    finite = np.abs(wanted[np.isfinite(wanted)].astype(np.float64))
    atol = max(atol, 2.0**-22 * float(finite.max(initial=0.0)))
    np.testing.assert_allclose(got.astype(np.float64), wanted.astype(np.float64), rtol=rtol, atol=atol)


def reason_of(message: str) -> str:
    r"""Return why a model was refused, without names that mean something in one test only.

    Examples
    --------
    >>> reason_of("m: expected operators, got 1 nodes:\n  Det (1x: 'n'): operator Det has no lowering\nPass")
    'Det: operator Det has no lowering'
    """
    lines = [line.strip() for line in message.splitlines() if line.startswith("  ")] or [message.split(": ", 1)[-1]]
    plain = [re.sub(r" \(\d+x: .*?\)(?=: )", "", line) for line in lines]
    plain = [re.sub(r"(?<!=)'[^']*'(, '[^']*')*", "...", line).replace(" ...:", ":") for line in plain]
    return "; ".join(dict.fromkeys(plain))


def warm(some: Sequence[Any]) -> int:
    """Compile the kernels of all tests together into the cache; return how many have no candidate that works."""
    from roller.compile_arguments import resolve_options
    from roller.models.batch.compile_kernels import compile_kernels
    from roller.models.batch.kernel_jobs import BatchSettings
    from roller.models.compile import resolve_target_and_workers
    from roller.runtime.cache import KernelCache

    sources: dict[str, Any] = {}
    for case in some:
        with contextlib.suppress(Exception), warnings.catch_warnings():  # judged later, one by one
            warnings.simplefilter("ignore")
            prepared = Prepared(case.model, True, {})
            for inputs, _ in case.data_sets:
                sources.update(prepared.program(inputs).kernels)
    settings = BatchSettings(resolve_options(None, RollerBackend.OPTIONS["top_k"]))
    target, worker_pool = resolve_target_and_workers(RollerBackend.OPTIONS["device"])
    try:
        return len(compile_kernels(sources, target, settings, worker_pool=worker_pool, cache=KernelCache()).failures)
    finally:
        worker_pool.close()


def verdicts(*, evaluated: bool, matching: str = "") -> Iterator[Verdict]:
    """Yield the verdict on every test, in the order of the suite."""
    some = cases(matching)
    if not evaluated:
        warm(some)
    for case in some:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            yield judged(case, evaluated=evaluated)


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge all tests and print counts, and every one that is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--evaluate", action="store_true", help="compute kernels by their definition")
    parser.add_argument("--matching", default="", help="tests whose name contains this")
    parser.add_argument("--verbose", action="store_true", help="list refused tests, too")
    options = parser.parse_args(arguments)
    began, found = time.perf_counter(), []
    for v in verdicts(evaluated=options.evaluate, matching=options.matching):
        found.append(v)
        if v.outcome == WRONG or (options.verbose and v.outcome == REFUSED):
            print(f"{v.outcome:8} {v.name}: {v.reason}", flush=True)
    for label, some in (("all", found), ("float32", [v for v in found if v.float32])):
        counts = {o: sum(v.outcome == o for v in some) for o in (PASSED, REFUSED, EXCEPTED, WRONG)}
        print(f"{label}: {len(some)} tests, {counts}")
    print(f"{time.perf_counter() - began:.1f} s")
    return int(any(v.outcome == WRONG for v in found))


if __name__ == "__main__":
    sys.exit(main())
