"""Every argument of every operator takes what nobody should pass, and says which argument it was."""

from __future__ import annotations

import inspect
import math
from typing import Any

import numpy as np
import pytest

import roller
from roller.errors import ExprError, RollerError
from roller.ops import REGISTRY, from_spec
from roller.runtime.check import check
from tests.offenders import every

_IMAGE = {"n": 1, "c": 4, "h": 6, "w": 6}
_WINDOW = {**_IMAGE, "kh": 2, "kw": 2}
#: Arguments without a default, by name.
_PLAIN = {**_WINDOW, "m": 4, "k": 4, "f": 4, "shape": (4, 4), "names": "relu"}
_KINDS = {"pool2d": "max", "reduce": "sum"}


class _Silent:
    def __repr__(self) -> str:
        raise RuntimeError("no words")

    def __iter__(self) -> Any:
        raise RuntimeError("nothing to give")


_HOSTILE = (
    10**400, 10**5000, -(10**5000), 2**62, -1, 0, None, math.nan, math.inf, 0.5, "", "x", "\ud800", "1e400",
    "clip(0, 1e300)", "NCHW" + "9" * 5000 + "c", b"relu", (), [[1, 2], [3]], [10**5000], [2**40] * 5, {"a": 10**5000},
    {1}, iter(()), 1j, np.float32(1), np.array([1, 2]), np.dtype("float32"), (None,), (b"relu",), int, _Silent(),
    [_Silent()],
)  # fmt: skip


@every("name", sorted(REGISTRY))
def test_no_argument_raises_an_error_of_python(name: str) -> None:
    function = REGISTRY[name]
    parameters = inspect.signature(function).parameters.values()
    plain = {p.name: _KINDS[name] if p.name == "kind" else _PLAIN[p.name] for p in parameters if p.default is p.empty}
    assert function(**plain).key
    for argument in (p.name for p in parameters):
        for value in _HOSTILE:
            try:
                function(**{**plain, argument: value}).key  # noqa: B018 - what is made on first use may fail too
            except RollerError as error:
                assert str(error).startswith(f"{name}: ")
                assert len(str(error)) < 3000


@every(
    ("call", "message"),
    [
        (lambda ops: ops["elementwise"](10**400, (4,)), "argument 'names': expected the name of a function or several"),
        (lambda ops: ops["matmul"](4, 4, 4, epilogue=0.5), "argument 'epilogue': expected the name of a function"),
        (lambda ops: ops["matmul"](4, 4, 4, dtype=-1), "argument 'dtype': unknown dtype -1. Use one of"),
        (lambda ops: ops["matmul"](4, 4, 4, out_dtype=10**5000), "unknown dtype an integer of 16610 bits"),
        (lambda ops: ops["matmul"](4, 4, 4, transpose_a="False"), "argument 'transpose_a': expected True or False"),
        (lambda ops: ops["reduce"](["sum"], (4,)), r"argument 'kind': unknown kind \['sum'\]"),
        (lambda ops: ops["reduce"]("argmax", (4,), out_dtype="int46"), "unknown dtype 'int46'; did you mean"),
        (lambda ops: ops["conv2d"](1, 4, 6, 6, 4, 3, 3, layout=0.5), "argument 'layout': unknown layout 0.5"),
        (lambda ops: ops["rms_norm"]((4,), eps=10**400), "argument 'eps': expected a number of at least 0"),
        (lambda ops: ops["softmax"]((4, 4), axis=None), "argument 'axis': expected one dimension, got None"),
    ],
)  # fmt: skip
def test_the_argument_is_named(call: Any, message: str) -> None:
    with pytest.raises(ExprError, match=message):
        call(REGISTRY)


@every("column", ["op", "id", "M", "N", "batch", "dtype", "acc_dtype", "transpose_a"])
def test_no_column_of_a_row_raises_an_error_of_python(column: str) -> None:
    for value in _HOSTILE:
        for batch in (None, 2):
            try:
                from_spec({"op": "matmul", "M": 4, "N": 4, "K": 4, column: value}, batch).key  # noqa: B018
            except RollerError as error:
                assert len(str(error)) < 3000


@every("seed", ["text", -1, 1.5, None, True, [1]])
def test_a_seed_is_a_whole_number(seed: Any) -> None:
    relu, ones = REGISTRY["elementwise"]("relu", (4,)), np.ones(4, np.float32)
    for use in (lambda: roller.compile(relu, "v100", seed=seed), lambda: check(relu, [ones], [ones], seed=seed)):
        with pytest.raises(RollerError, match="seed: expected a whole number of at least 0, got"):
            use()


def test_fractions_are_not_lost_in_the_accumulator() -> None:
    with pytest.raises(ExprError, match="'acc_dtype': expected a floating-point dtype beside dtype='float32'"):
        REGISTRY["matmul"](4, 4, 4, acc_dtype="uint8")
