"""Sizes beyond those that code was generated for, and sizes beyond those that stay ready."""

from __future__ import annotations

import logging

import numpy as np
import onnx

import roller
from roller_runtime.session import range_session

TEXT = """<ir_version: 8, opset_import: ["": 17]>
doubled (float[batch, 24] x) => (float[batch, 24] y) { y = Add(x, x) }"""


def test_numbers_that_agree_at_small_sizes_alone():
    """Of 33 rows of n columns, n + 1 and ceil(33 * n / 32) vectors are the same number up to n = 32."""
    text = """<ir_version: 8, opset_import: ["": 17]>
    columns (float[m, 33, n] x) => (float[1, 33, n] y) { y = ReduceSum<keepdims = 1>(x, axes) }"""
    text = text.replace("{ y", "<int64[1] axes = {0}> { y")
    made = roller.compile_model(
        onnx.parser.parse_model(text), shapes={"x": (("m", 1, 4), 33, ("n", 1, 80))}, deterministic=True
    )
    for n in (1, 31, 33, 64, 79, 80):
        x = np.random.default_rng(n).standard_normal((2, 33, n)).astype("float32")
        np.testing.assert_allclose(made.run(x), x.sum(0, keepdims=True), atol=1e-5)


def test_sizes_that_are_used_stay_ready(caplog, monkeypatch):
    session = roller.compile_model(
        onnx.parser.parse_model(TEXT), shapes={"x": (("batch", 1, 16), 24)}, deterministic=True
    )
    monkeypatch.setattr(range_session, "_LEAST_READY", 4)
    monkeypatch.setattr(range_session, "_READY_STEPS", 0)
    monkeypatch.setattr(logging.getLogger("roller"), "propagate", True)  # another test may leave its settings
    caplog.set_level(logging.DEBUG, logger="roller.session")
    for n in range(1, 13):
        session.run(np.ones((n, 24), "float32"))
        session.run(np.ones((7, 24), "float32"))
    prepared = [int(r.getMessage().partition("=")[2].split()[0]) for r in caplog.records]
    assert sorted(prepared) == list(range(1, 13)) and len(session._ready) <= 2 * session.most_ready == 8
    caplog.clear()
    for n in (1, 2, 3, 4) * 5:  # as many as stay
        session.run(np.ones((n, 24), "float32"))
    assert len(caplog.records) == 4
