"""Profiles as JSON: they read back equal, older ones are read, newer and damaged ones are refused in words."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path

import pytest

from roller.errors import ArtifactError
from roller.insight.step_profile.batch_curve import BatchPoint, batch_curve
from roller.insight.step_profile.node import Seconds
from roller.insight.step_profile.profile_json import (
    VERSION,
    load_profile,
    profile_from_json_data,
    profile_to_json_data,
    save_profile,
)
from roller.insight.step_profile.step_profile import MemoryPoint, StepProfile
from roller.insight.step_profile.tree_builder import NodeKey, TreeBuilder
from tests.offenders import every

OLD = Path(__file__).with_name("version_1.json")


def sample():
    tree = TreeBuilder()
    line = NodeKey("line", "train.py:9")
    for phase, took in (("forward", 0.1), ("backward", 0.25)):
        leaf = (line, NodeKey("module", "fc"), NodeKey("operator", "aten.mm.default"), NodeKey("kernel", "gemm"))
        tree.add_time(leaf, phase, Seconds(took, took / 2, 1e-6), bound="compute", pipes=[("fma", took / 3)])
    tree.add_bytes(
        (line, NodeKey("module", "fc")), "parameter", name="weight", held=1 << 40, registered=("train.py:2",)
    )
    tree.add_bytes((line,), "activation", held=77, requested=99)
    root = tree.build()
    curve = batch_curve(lambda n: BatchPoint(n, 0.1 * n, 10.0, 100 * n, 200 * n, True, "device", "forward"), 4, 0)
    return StepProfile(
        "train.py", "predicted", "a100", root, root.wall_s, 0.3, 0.4, 8, 8.0, 2, "bf16", ("fc",), "library", "links",
        1 << 41, 12, "", (MemoryPoint(0.0, 5, 6, {"activation": 3}),), {"kernel": 0.5}, curve, ("a note",),
        {"roller": "0123"},
    )  # fmt: skip


def test_a_profile_reads_back_equal(tmp_path):
    made, path = sample(), tmp_path / "profile.json"
    save_profile(made, path)
    assert load_profile(path) == made


def test_version_1_is_read():
    found = load_profile(OLD)
    assert json.loads(OLD.read_text())["version"] == 1 and found.source == "predicted" and found.curve is not None
    assert {p.peak_phase for p in found.curve.computed} == {""} and found.root.calls == 26
    assert profile_from_json_data(profile_to_json_data(found)) == found


def test_a_newer_version_is_refused_in_words():
    data = profile_to_json_data(sample()) | {"version": VERSION + 1}
    with pytest.raises(ArtifactError, match=f"expected a profile of version 1 to {VERSION}, got version {VERSION + 1}"):
        profile_from_json_data(data)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"format": "roller-trace", "version": 1}', "[" * 100_000])
def test_what_is_no_profile_is_refused(tmp_path, text):
    path = tmp_path / "profile.json"
    path.write_text(text)
    with pytest.raises(ArtifactError, match="expected a profile"):
        load_profile(path)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(ArtifactError, match="expected a profile of roller, got what cannot be read"):
        load_profile(tmp_path / "none.json")


def places(value, path=()):
    yield path
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from places(inner, (*path, key))
    elif isinstance(value, list):
        for at, inner in enumerate(value):
            yield from places(inner, (*path, at))


def test_damaged_profiles_are_refused_or_read_whole():
    whole = json.loads(json.dumps(profile_to_json_data(sample())))
    draw = random.Random(1)
    found = [path for path in places(whole) if path]
    for path in found:
        for wrong in (None, "x", -3, 1.5, True, [], {}, float("inf")):
            data = copy.deepcopy(whole)
            at = data
            for key in path[:-1]:
                at = at[key]
            if draw.random() < 0.5 and isinstance(at, dict):
                del at[path[-1]]
            else:
                at[path[-1]] = wrong
            try:
                read = profile_from_json_data(data)
            except ArtifactError:
                continue
            assert profile_from_json_data(profile_to_json_data(read)) == read


@every(
    "change",
    [
        {"samples": -1.0}, {"samples": 1e308, "devices": 1000}, {"samples": 1e308, "devices": 10**400},
        {"batch": -8}, {"devices": -2}, {"samples": -1.0, "out_of_memory": "at a.py:1"},
    ],
)  # fmt: skip
def test_a_profile_without_a_finite_throughput_is_refused(change):
    with pytest.raises(ArtifactError, match="got what cannot be read"):
        profile_from_json_data(profile_to_json_data(sample()) | change)


@every("line", ["train.py:0", "train.py:-1"])
def test_lines_count_from_1(line):
    for name in ("train.py:9", "train.py:2"):  # of a node, and of what registers a parameter
        text = json.dumps(profile_to_json_data(sample())).replace(f'"{name}"', f'"{line}"')
        with pytest.raises(ArtifactError, match=f"the line '{line}'"):
            profile_from_json_data(json.loads(text))


def test_parts_that_do_not_sum_to_the_whole_are_refused():
    data = profile_to_json_data(sample())
    next(row for row in data["nodes"] if row["kind"] == "module")["held_bytes"]["parameter"] += 1
    with pytest.raises(ArtifactError, match="expected the sum of its parts"):
        profile_from_json_data(data)
