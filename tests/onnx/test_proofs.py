"""Kernels of models for a GPU elsewhere: proved beside each other, replaced where wrong, tried once."""

from __future__ import annotations

import shutil

import pytest

pytest.importorskip("tvm")

import roller
from roller import ops, pipeline
from roller.errors import RollerError
from roller.model.steps import KernelSource
from roller.onnx import proofs
from roller.onnx.batch import compile_kernels
from roller.onnx.compile import hire
from roller.onnx.jobs import Settings
from roller.onnx.options import ModelOptions
from roller.runtime.cache import KernelCache
from tests.emulator.faults import index_off_by_one, planted

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="the emulator builds kernels with g++")

SOURCES = {"m": KernelSource(ops.matmul(40, 36, 20), ()), "r": KernelSource(ops.elementwise(("relu",), (300,)), ())}


def compiled(prove_s, cache=None):
    target, crew = hire("v100", workers=2)
    try:
        settings = Settings(roller.ConstructOptions(top_k=3), prove_s=prove_s)
        return compile_kernels(SOURCES, target, settings, crew=crew, cache=cache)
    finally:
        crew.close()


def known(batch):
    return {k: a.build.get("proved") for k, a in batch.artifacts.items()}


def test_kernels_are_proved_where_seconds_are_given_and_only_once(tmp_path, monkeypatch):
    cache = KernelCache(tmp_path)
    assert known(compiled(0.0, cache)) == {"m": None, "r": None}
    assert known(compiled(30.0, cache)) == {"m": "emulated", "r": "emulated"}
    monkeypatch.setattr(proofs.Proofs, "ahead", lambda *_: pytest.fail("proved again"))
    again = compiled(30.0, cache)
    assert known(again) == {"m": "emulated", "r": "emulated"} and again.count("cached") == 2


def test_a_wrong_kernel_gives_way_to_the_next_candidate(monkeypatch):
    found = roller.construct(SOURCES["m"].expression, "v100", 3)
    wrong, lower = found[0].program.digest, pipeline.lower

    def broken(program, expression, spec):
        made = lower(program, expression, spec)
        return planted(made, index_off_by_one) if program.digest == wrong else made

    monkeypatch.setattr(pipeline, "lower", broken)
    batch = compiled(30.0)
    assert batch.artifacts["m"].program.digest == found[1].program.digest
    assert known(batch) == {"m": "emulated", "r": "emulated"}


def test_what_was_not_tried_says_why(monkeypatch):
    assert set(known(compiled(1e-9)).values()) == {"not proved (the seconds for proofs were used up)"}
    monkeypatch.setenv("CXX", "no-such-compiler")
    texts = known(compiled(9)).values()
    assert all(text.startswith("not proved (emulator: expected the C++ compiler") for text in texts)


def test_seconds_are_a_number():
    assert ModelOptions().settings().prove_s == 0.0
    with pytest.raises(RollerError, match="prove_s: expected seconds of at least 0, or None, got -1"):
        ModelOptions(prove_s=-1).settings()
