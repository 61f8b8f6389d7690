"""Reference outputs of a model from ONNX Runtime, for a bundle for an absent GPU."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from roller.errors import LaunchError
from roller.models.session.gpu_bundle import Expected
from roller_runtime.core.dtypes import is_float, numpy_dtype
from roller_runtime.plan.program_steps import Program, Value

if TYPE_CHECKING:
    import onnx

#: Exclusive upper bound of random integer inputs, most of which are indices or token ids.
_BELOW = 2
#: Options that make ONNX Runtime compute a quantized model as its file specifies. Without them, processors without
#: byte dot products saturate sums of pairs, and floating-point biases become integers. Other models are unaffected.
_AS_WRITTEN = {"session.x64quantprecision": "1"}
_NOT_AS_WRITTEN = ("WeightBiasQuantization",)


def make_random_expected_outputs(
    model: str | Path | bytes | onnx.ModelProto,
    program: Program,
    *,
    seed: int = 0,
    values: Mapping[str, Any] | None = None,
) -> Expected:
    """Return random inputs for a model and the outputs that ONNX Runtime computes from them."""
    random = np.random.default_rng(seed)
    feeds = {n: _random_array(program.values[n], random) for n in program.inputs}
    known = {n: np.asarray(v) for n, v in (values or {}).items()}
    outputs, version = run_onnxruntime(model, program, {**known, **feeds})
    return Expected(tuple(feeds.values()), outputs, f"onnxruntime {version}")


def run_onnxruntime(
    model: str | Path | bytes | onnx.ModelProto, program: Program, feeds: Mapping[str, np.ndarray],
    *, optimised: bool = True,
) -> tuple[tuple[np.ndarray, ...], str]:  # fmt: skip
    """Run a model in ONNX Runtime; return the outputs and the version of ONNX Runtime."""
    try:
        import onnxruntime
    except ImportError as err:
        raise LaunchError(f"expected results: expected the package onnxruntime, got {err}. Install it.") from err
    given = os.fspath(model) if isinstance(model, (str, Path)) else model
    if not isinstance(given, (str, bytes)):
        given = given.SerializeToString()
    try:
        options = onnxruntime.SessionOptions()
        if not optimised:
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        for name, value in _AS_WRITTEN.items():
            options.add_session_config_entry(name, value)
        session = onnxruntime.InferenceSession(
            given, options, providers=["CPUExecutionProvider"], disabled_optimizers=list(_NOT_AS_WRITTEN)
        )
        taken = {i.name for i in session.get_inputs()}
        results = session.run(list(program.outputs), {n: a for n, a in feeds.items() if n in taken})
    except Exception as err:  # its errors share no base class
        raise LaunchError(f"expected results: onnxruntime refuses the model ({err}).") from err
    return reshape_outputs(program, results), onnxruntime.__version__


def reshape_outputs(program: Program, results: Sequence[Any]) -> tuple[np.ndarray, ...]:
    """Return results as arrays, reshaped to the program's shapes where these are known."""
    values, named = program.values, zip(program.outputs, results, strict=True)
    return tuple(np.asarray(r).reshape(values[n].shape) if n in values else np.asarray(r) for n, r in named)


def _random_array(value: Value, random: np.random.Generator) -> np.ndarray:
    dtype = numpy_dtype(value.dtype)
    if not is_float(value.dtype):
        return random.integers(0, _BELOW, value.shape).astype(dtype)
    return random.standard_normal(value.shape, np.float32).astype(dtype)
