"""Whatever is passed to a public call: it works, or ends in one error of roller's own, of bounded length."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import roller
from roller import ops
from roller.artifact import KernelArtifact
from roller.compiler.autotune import Selection
from roller.errors import RollerError
from roller.models.session.gpu_bundle import ModelBundle
from roller.perf.estimate import Estimate
from roller.runtime.bundle_format import Bundle
from roller.runtime.check_and_time_candidates import ProfileOptions
from roller.runtime.probe_bundle import ProbeBundle
from roller.runtime.random_inputs import random_inputs
from roller.tile import RProgram


class Unprintable:
    """An object whose author made a mistake."""

    def __repr__(self) -> str:
        raise RuntimeError("no name")


def endless() -> list[Any]:
    """Return a list that holds itself."""
    found: list[Any] = []
    found.append(found)
    return found


BAD: dict[str, Any] = {
    "none": None, "true": True, "zero": 0, "minus": -1, "three": 3, "huge": 10**5000, "half": 0.5,
    "nan": float("nan"), "inf": float("inf"), "complex": 1j, "numpy": np.int64(-7), "array": np.arange(4.0),
    "array 0d": np.array(3), "ints": np.arange(1, 5), "text": "x", "empty": "", "null": "a\0b", "long": "x" * 100_000,
    "words": "x " * 50_000, "surrogate": "\udcff\ud800", "bytes": b"x", "list": [], "tuple": (), "dict": {}, "set": {1},
    "endless": endless(), "nested": [[1, [2]]], "huge list": [10**5000], "huge key": {10**5000: 10**5000},
    "named": {"x": endless()}, "object": object(), "unprintable": Unprintable(), "type": int, "call": len,
    "numbers": list(range(100_000)), "dtype": np.dtype("float32"),
}  # fmt: skip
EXPRESSION = ops.matmul(4, 4, 4)
TILES = {"shared": {"i": 4, "j": 4, "k": 4}, "register": {"i": 1, "j": 1}}


def made_kernel() -> KernelArtifact:
    """Return a kernel that was not lowered: what may be asked of it needs no compiler."""
    found = roller.construct(EXPRESSION, "v100", 1)[0]
    return KernelArtifact("cuda", {"arch": "sm_70"}, "v100", EXPRESSION, found.program, (), (), {})


def arguments() -> list[tuple[str, Callable[..., Any], Mapping[str, Any]]]:
    """Return public calls with arguments that are right; one at a time is replaced."""
    artifact, spec = made_kernel(), roller.load_spec("v100")
    kernel = roller.CompiledKernel(artifact, reachable=False)
    # No call may get as far as work: a device that is not there refuses what passed all other checks.
    nowhere = {"expr": EXPRESSION, "device": "no such device", "cache": False}
    own = {n: {} for n in ops.REGISTRY}
    own |= {
        "conv2d": {"n": 1, "c": 4, "h": 6, "w": 6, "f": 4, "kh": 3, "kw": 3},
        "depthwise_conv2d": {"n": 1, "c": 4, "h": 6, "w": 6, "kh": 3, "kw": 3},
        "matmul": {"m": 4, "n": 4, "k": 4}, "reduce": {"kind": "sum", "shape": (4, 4)},
        "elementwise": {"names": "relu", "shape": (4,)}, "softmax": {"shape": (4, 4)},
        "pool2d": {"kind": "max", "n": 1, "c": 4, "h": 6, "w": 6, "kh": 2, "kw": 2},
    }  # fmt: skip
    return [
        ("ConstructOptions", roller.ConstructOptions, {}),
        ("Selection", Selection, {}),
        ("ProfileOptions", ProfileOptions, {}),
        ("construct", roller.construct, {"expr": EXPRESSION, "device": "v100", "top_k": 1}),
        ("predict", roller.predict, {"expr": EXPRESSION, "device": "v100", "tiles": TILES}),
        ("sensitivity", roller.sensitivity, {"expr": ops.elementwise("relu", (4,)), "device": "v100"}),
        ("explain", roller.explain, {"expr": ops.elementwise("relu", (4,)), "device": "v100"}),
        ("why_not", roller.why_not, {"expr": EXPRESSION, "device": "v100", "tiles": TILES}),
        ("kernel.explain", kernel.explain, {}),
        ("kernel.why_not", kernel.why_not, {"tiles": TILES}),
        ("compile", roller.compile, nowhere),
        ("compile_model", roller.compile_model, {"model": b"", "device": "v100"}),
        ("load", roller.load, {"path": "/no/such"}),
        ("load_model", roller.load_model, {"folder": "/no/such"}),
        ("load_spec", roller.load_spec, {"name_or_path": "v100"}),
        ("with_overrides", spec.with_overrides, {"overrides": {}}),
        ("share", spec.share, {"units": 1}),
        ("layer", spec.layer, {"name": "shared"}),
        ("ops_per_s", spec.ops_per_s, {"operation": "fma"}),
        ("kernel.save", kernel.save, {"path": "/no/such/folder/k.json"}),
        ("kernel", kernel, {"out": None}),
        ("from_dict", KernelArtifact.from_dict, {"data": artifact.to_dict()}),
        ("RProgram.from_dict", RProgram.from_dict, {"data": {}}),
        ("Estimate.from_dict", Estimate.from_dict, {"data": {}}),
        ("Bundle", Bundle, {"folder": "/no/such"}),
        ("ModelBundle", ModelBundle, {"folder": "/no/such"}),
        ("ProbeBundle", ProbeBundle, {"folder": "/no/such"}),
        ("random_inputs", random_inputs, {"expression": EXPRESSION, "seed": 0}),
        ("parse", ops.parse, {"text": "x"}),
        ("from_spec", ops.from_spec, {"mapping": {}}),
        *((name, ops.REGISTRY[name], right) for name, right in own.items() if right),
    ]


CASES = arguments()


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written under a name that happens to be one goes where nobody looks."""
    monkeypatch.chdir(tmp_path)


def places() -> list[Any]:
    """Return every argument of every call."""
    found = []
    for name, call, right in CASES:
        for argument in inspect.signature(call).parameters.values():
            if argument.kind not in (argument.VAR_KEYWORD, argument.VAR_POSITIONAL) and argument.name != "expression":
                found.append(pytest.param(call, right, argument.name, id=f"{name}-{argument.name}"))
    return found


def refused_or_works(call: Callable[[], Any]) -> None:
    try:
        call()
    except RollerError as err:
        assert len(str(err)) < 2000, str(err)[:3000]


@pytest.mark.parametrize(("call", "right", "argument"), places())
def test_a_wrong_argument_is_one_error_of_our_own(call, right, argument):
    for value in BAD.values():
        if argument == "reconstruct" and value is True:  # right, and a second of work
            continue
        refused_or_works(partial(call, **{**right, argument: value}))


@pytest.mark.parametrize("layer", ["shared", "register", "rstep"])
def test_wrong_tiles_are_one_error_of_our_own(layer):
    for value in BAD.values():
        for tile in (value, [value] * 3, {"i": value, "j": 4, "k": 4}):
            refused_or_works(partial(roller.predict, EXPRESSION, "v100", {**TILES, layer: tile}))
            refused_or_works(partial(roller.predict, EXPRESSION, "v100", {"shared": 3, layer: tile}))


def test_wrong_constants_are_one_error_of_our_own():
    for value in BAD.values():
        refused_or_works(partial(roller.compile, EXPRESSION, "v100", constants={"B": value}, cache=False, top_k=1))


def test_arrays_that_do_not_fit_and_options_that_do_not_exist_are_refused():
    kernel = roller.CompiledKernel(made_kernel(), reachable=False)
    for value in BAD.values():
        refused_or_works(lambda value=value: kernel(value))
        refused_or_works(lambda value=value: kernel(out=value, stream=value))


def test_wrong_calls_of_a_model_are_one_error_of_our_own():
    pytest.importorskip("tvm")
    helper = pytest.importorskip("onnx").helper
    ends = [helper.make_tensor_value_info(n, 1, [4, 4]) for n in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "m", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session, x = roller.compile_model(model, progress=False, deterministic=True, workers=1), np.zeros((4, 4), "float32")
    session.save("saved")
    calls: list[Callable[[Any], Any]] = [
        session.run,
        session.save,
        lambda v: session.run(v, {"x": x}),
        lambda v: session.run(["y"], v),
        lambda v: session.run([v], {"x": x}),
        lambda v: session.run({"x": v}),
        lambda v: session.run(x, out=v),
        lambda v: session.run(x, out={"y": v}),
        lambda v: session.profile(v, repeats=1),
        lambda v: session.save("saved", sources=v),
        lambda v: roller.load_model("saved", verify=v),
        lambda v: roller.load_model("saved", device=v),
    ]
    for call in calls:
        for value in BAD.values():
            refused_or_works(partial(call, value))
