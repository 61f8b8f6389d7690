"""Simulated device: results come from the reference, and times from the estimate with seeded noise.

The profiler runs it in a separate process, as it does a GPU, so that isolation, checks, ranking, bundles and the cache
are tested everywhere. Planted faults make it hang, crash, compute wrong results or write out of bounds.
"""

from __future__ import annotations

import hashlib
import os
import signal
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from roller.artifact import KernelArtifact
from roller.backends.constant_inputs import constant_arrays, merge_constants
from roller.backends.periodic_inputs import periodic_inputs
from roller.backends.refuse_unknown_options import refuse_unknown_options
from roller.errors import LaunchError, counted
from roller.expr import TensorExpr
from roller.expr.evaluate import _Evaluation as Evaluation
from roller_runtime.core.dtypes import decode_stored_values, encode_stored_values, storage_dtype

#: Default relative standard deviation of the times.
NOISE = 0.02
#: Number of simulated samples of a measurement.
_SAMPLES = 9
#: Simulated time in seconds of a probe's run, and of its start-up in addition to the steps.
_RUN_S, _START_S = 0.4e-3, 4e-6


class NullDevice:
    """Simulated device for profiling; see :class:`DeviceHandle` for the options."""

    def __init__(self, index: int, options: Mapping[str, str]) -> None:
        del index
        self._noise = float(options.get("noise", NOISE))
        self._seed = int(options.get("seed", 0))
        self._delay_s = float(options.get("delay", 0))
        self._faults = {
            kind: {int(n) for n in options.get(kind, "").split(",") if n}
            for kind in ("hang", "crash", "wrong", "out_of_bounds")
        }
        self._expected: list[np.ndarray] = []
        self._estimate_s = 0.0
        self._probed = -1

    def properties(self) -> dict[str, Any]:
        """Return the properties of the device."""
        return {"name": "null device", "versions": {"numpy": np.__version__}}

    def prepare(self, expression: TensorExpr, seed: int, points: Sequence[np.ndarray]) -> None:
        """Compute the outputs at the given points, once for all candidates."""
        values: Any = {t.name: x for t, x in zip(expression.inputs, periodic_inputs(expression, seed), strict=True)}
        run = Evaluation(expression, values, False)
        self._expected = []
        with np.errstate(all="ignore"):
            for t, at in zip(expression.output_tensors, points, strict=True):
                self._expected.append(encode_stored_values(np.asarray(run.at(t.name, at)), t.dtype))

    def check(self, position: int, artifact: KernelArtifact) -> list[np.ndarray]:
        """Return the outputs at the points passed to :meth:`prepare`, or simulate the fault planted at ``position``."""
        time.sleep(self._delay_s)
        if position in self._faults["hang"]:
            time.sleep(1e9)
        if position in self._faults["crash"]:
            os.kill(os.getpid(), signal.SIGSEGV)
        if position in self._faults["out_of_bounds"]:
            raise RuntimeError("an illegal memory access was encountered (planted)")
        self._estimate_s = float(artifact.estimate["seconds"])
        outputs = zip(self._expected, artifact.expression.output_tensors, strict=True)
        if position in self._faults["wrong"]:
            return [
                encode_stored_values(decode_stored_values(x, t.dtype).astype(np.float64) * 1.5 + 1, t.dtype)
                for x, t in outputs
            ]
        return list(self._expected)

    def time(self, candidate_id: str, budget_s: float, drop_s: float | None) -> dict[str, Any]:
        """Return the estimate with noise that depends only on the candidate and the device's seed."""
        del budget_s
        digest = hashlib.sha256(f"{self._seed}/{candidate_id}".encode()).digest()
        noise = np.random.default_rng(list(digest)).standard_normal(_SAMPLES)
        # One offset per candidate, with a smaller jitter per sample.
        samples = self._estimate_s * np.maximum(0.1, 1 + self._noise * (noise[0] + 0.2 * noise))
        if drop_s is not None and samples[0] > drop_s:
            return {"median_s": float(samples[0]), "samples": 1, "complete": False}
        low, median, high = np.percentile(samples, (25, 50, 75))
        return {"median_s": float(median), "spread_s": float(high - low), "samples": _SAMPLES, "complete": True}

    def probe_load(self, image: bytes, inputs: Sequence[tuple[int, np.ndarray]], output_words: int) -> None:
        """Load nothing."""
        del image, inputs, output_words
        self._probed = -1

    def probe_run(self, case: Mapping[str, Any], check_steps: int) -> dict[str, Any]:
        """Return the expected results and noisy expected times of ``case``, or simulate the fault planted for it."""
        del check_steps
        self._probed += 1
        time.sleep(self._delay_s)
        if self._probed in self._faults["hang"]:
            time.sleep(1e9)
        if self._probed in self._faults["crash"]:
            os.kill(os.getpid(), signal.SIGSEGV)
        overrun = "4 bytes past its end (planted)" if self._probed in self._faults["out_of_bounds"] else None
        values = [v + (self._probed in self._faults["wrong"]) for _, v in case["checks"]]
        digest = hashlib.sha256(f"{self._seed}/{case['key']}".encode()).digest()
        rng = np.random.default_rng(list(digest))
        steps = max(1, round(_RUN_S / case["seconds"]))
        out: dict[str, Any] = {"values": values, "overrun": overrun, "steps": steps}
        for n, name in ((1, "once"), (2, "twice")):
            # Disturbances only add time.
            slower = np.exp(self._noise * np.abs(rng.standard_normal(_SAMPLES)))
            out[name] = list(map(float, (_START_S + n * steps * case["seconds"]) * slower))
        if case["cycles_word"] is not None:
            out["cycles"] = [[n * steps * case["cycles"]] * _SAMPLES for n in (1, 2)]
        return out


class NullKernel:
    """Kernel of a null device: it evaluates the expression of an artifact in any language on NumPy arrays.

    Examples
    --------
    >>> import roller
    >>> kernel = roller.compile(roller.ops.matmul(8, 8, 8), device="null:v100", top_k=1)
    >>> kernel(np.eye(8, dtype="f"), np.ones((8, 8), "f")).sum()
    np.float32(64.0)
    """

    def __init__(self, artifact: KernelArtifact) -> None:
        self.artifact = artifact
        self._constants = constant_arrays(artifact)

    def __call__(self, *arrays: Any, out: Any = None, **options: Any) -> Any:
        """Evaluate the expression in float64 and round the results to the dtypes of the outputs."""
        expression = self.artifact.expression
        refuse_unknown_options(expression.name, "null device's", options, ("out",), "A null device has no streams.")
        given = [np.asarray(a) for a in arrays]
        free = [t for n, t in enumerate(expression.inputs) if n not in self._constants]
        wanted = [(t.shape, str(storage_dtype(t.dtype))) for t in free]
        if [(a.shape, str(a.dtype)) for a in given] != wanted:
            got = [(a.shape, str(a.dtype)) for a in given]
            raise LaunchError(f"{expression.name}: expected arrays of {wanted}, got {got}. Pass one per input.")
        given = merge_constants(given, self._constants)
        numbers = [decode_stored_values(a, t.dtype) for a, t in zip(given, expression.inputs, strict=True)]
        with np.errstate(all="ignore"):
            exact = expression.evaluate(numbers)
        results = [encode_stored_values(x, t.dtype) for x, t in zip(exact, expression.output_tensors, strict=True)]
        if out is not None:
            targets = [out] if len(results) == 1 and not isinstance(out, (tuple, list)) else list(out)
            if len(targets) != len(results):
                wanted_outputs = counted(len(results), "array")
                raise LaunchError(f"{expression.name}: 'out': expected {wanted_outputs}, got {len(targets)}.")
            for target, x in zip(targets, results, strict=True):
                target[...] = x
            return out
        return results[0] if len(results) == 1 else tuple(results)
