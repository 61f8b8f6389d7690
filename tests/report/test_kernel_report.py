"""The pages of kernels, compiled models and benchmarks hold the numbers of their files."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

import roller
from roller.artifact import KernelArtifact
from roller.errors import ArtifactError
from roller.report.benchmark_report import benchmark_data, page_of_benchmark
from roller.report.kernel_report import kernel_data, page_of_kernel, tile_levels
from tests.report.pages import data_of

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"


@pytest.fixture(scope="module")
def artifact() -> KernelArtifact:
    return roller.compile(roller.ops.matmul(64, 96, 32), device="v100", top_k=1).artifact


def test_a_kernel_shows_its_prediction_and_source(artifact):
    data = kernel_data(artifact, explained=False)
    assert data["predicted_s"] == artifact.estimate["seconds"] and data["measured_s"] is None
    low, high = data["interval_s"]
    assert low < data["predicted_s"] < high
    assert data["source"] == artifact.source and "__global__" in data["source"] and data["language"] == "cuda"


def test_levels_lie_within_each_other(artifact):
    levels = tile_levels(artifact.program)
    assert [level["name"] for level in levels] == ["whole", "shared", "register"]
    assert levels[0]["extents"] == [["i", 64, False], ["j", 96, False], ["k", 32, True]]
    for outer, inner in pairwise(levels):
        for (axis, large, _), (other, small, _) in zip(outer["extents"], inner["extents"], strict=True):
            assert axis == other and small <= large


def test_a_matrix_program_ends_at_its_instruction():
    expr = roller.ops.matmul(1024, 1024, 512, dtype="float16")
    program = next(c.program for c in roller.construct(expr, "a100") if c.program.fragment is not None)
    last = tile_levels(program)[-1]
    assert last["name"] == program.fragment.name
    assert sorted(extent for _, extent, _ in last["extents"] if extent > 1) == sorted(
        (program.fragment.m, program.fragment.n, program.fragment.k)
    )


@pytest.mark.slow
def test_a_page_says_why_the_kernel_and_not_the_next(artifact):
    data = data_of(page_of_kernel(artifact))
    why = data["explanation"]
    assert why["time"]["value"] == data["predicted_s"] == why["predicted_s"]
    assert [row["chosen"] for row in data["candidates"]].count(True) == 1
    assert data["candidates"][0]["predicted_s"] == min(row["predicted_s"] for row in data["candidates"])
    assert why["rivals"] and all(rival["road"] for rival in why["rivals"] if rival["verdict"] == "slower")


def test_a_device_that_is_not_known_leaves_the_explanation_out(artifact):
    data = kernel_data(replace(artifact, device="no-such-device"))
    assert data["explanation"] is None and "no-such-device" in data["notes"][0]
    assert data["predicted_s"] == artifact.estimate["seconds"]


def test_an_anonymous_kernel_has_no_source(artifact):
    data = data_of(page_of_kernel(replace(artifact, device="no-such-device"), anonymous=True))
    assert data["source"] == "" and "__global__" not in json.dumps(data)


def test_results_keep_every_number():
    results = json.loads((RESULTS / "cpu.json").read_text(encoding="utf-8"))
    data = data_of(page_of_benchmark(RESULTS / "cpu.json"))
    tables = {table["name"]: {c["name"]: c for c in table["columns"]} for table in data["tables"]}
    assert data["run"]["processor"] == results["run"]["processor"]
    operators = tables["operators"]
    assert operators["predicted_s"]["values"] == [row["predicted_s"] for row in results["operators"]]
    assert operators["predicted_s"]["label"] == "predicted"
    assert operators["seconds.roller"]["values"] == [row["seconds"]["roller"] for row in results["operators"]]
    assert operators["seconds.roller"]["label"] == "measured"


def test_rows_within_rows_become_columns():
    data = benchmark_data("x", {"a": {"rows": [{"t": {"s": 1.5}, "l": [1, 2]}, {"u": 2}]}, "n": 3})
    (table,) = data["tables"]
    assert table["name"] == "a.rows" and data["run"] == {"n": 3}
    columns = {column["name"]: column["values"] for column in table["columns"]}
    assert columns == {"t.s": [1.5, None], "l": ["[1, 2]", None], "u": [None, 2]}


@pytest.mark.parametrize("text", ["[]", "{}", "1", '{"rows": [1, 2]}', "{", '{"rows": []}'])
def test_json_without_rows_is_refused(tmp_path, text):
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(ArtifactError, match=r"expected .*, got "):
        page_of_benchmark(path)


def test_rows_that_say_that_they_are_predicted_are_not_called_measured():
    rows = [{"model": "a3c", "kind": "predicted", "throughput_per_s": 2.0}]
    for kind, label in (("predicted", "predicted"), ("measured", "measured")):
        (table,) = benchmark_data("x", {"rows": [*rows, {**rows[0], "kind": kind}]})["tables"]
        assert {column["label"] for column in table["columns"]} == {label}
