"""Predictions of kernels: constructed once, the same ones read from a note ever after."""

from __future__ import annotations

import pytest

import roller
from roller.compile_arguments import spec_and_local_device
from roller.models.batch.executors import ForkedWorkers
from roller.models.batch.kernel_jobs import BatchSettings, BatchTarget, construct_jobs
from roller.models.batch.kernel_predictions import KernelPredictor
from roller.runtime.cache import KernelCache
from roller.runtime.small_result_cache import read_small_result, write_small_result
from roller.templates.common.options import ConstructOptions
from roller_runtime.plan.program_steps import KernelSource

SOURCES = {"a": KernelSource(roller.ops.matmul(64, 64, 64)), "b": KernelSource(roller.ops.elementwise("relu", (64,)))}


@pytest.fixture
def predict(tmp_path):
    target, settings = BatchTarget(spec_and_local_device("v100")[0], False), BatchSettings(ConstructOptions(top_k=1))

    def make(may_construct=True):
        def made(jobs):
            assert may_construct
            return construct_jobs(jobs, target, ForkedWorkers())[0]

        return KernelPredictor(SOURCES, target, settings, made, KernelCache(tmp_path))

    return make


def test_a_note_answers_like_construction(predict):
    first = predict()
    whole, share = first(SOURCES, None), first({"a": SOURCES["a"]}, 8)
    assert whole["a"].seconds == roller.construct(SOURCES["a"].expression, "v100", top_k=1)[0].estimate.seconds
    assert share["a"].seconds > whole["a"].seconds  # fewer units take longer
    assert len(first.constructed) == 3  # and need not be constructed again by the batch
    again = predict(may_construct=False)
    assert again(SOURCES, None) == whole and again({"a": SOURCES["a"]}, 8) == share


def test_a_note_that_says_something_else_is_made_again(predict, tmp_path):
    whole = predict()(SOURCES, None)
    (note,) = (tmp_path / "notes").glob("*.json")
    note.write_text('{"a": 5}')
    assert predict()(SOURCES, None) == whole and '"a":5' not in note.read_text()


def test_clearing_the_cache_clears_its_notes(predict, tmp_path):
    predict()(SOURCES, None)
    assert list((tmp_path / "notes").iterdir())
    KernelCache(tmp_path).clear()
    assert not list((tmp_path / "notes").iterdir())


def test_a_damaged_note_is_none(tmp_path):
    assert write_small_result(tmp_path, "n", {"x": 1}) and read_small_result(tmp_path, "n") == {"x": 1}
    for text in ("{", "[1]", ""):
        (tmp_path / "notes" / "n.json").write_text(text)
        assert read_small_result(tmp_path, "n") == {}


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path):
    (tmp_path / "notes").write_text("a file is in the way")
    assert not write_small_result(tmp_path, "n", {}) and read_small_result(tmp_path, "n") == {}
