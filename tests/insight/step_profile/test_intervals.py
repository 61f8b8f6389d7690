"""Intervals of nodes follow from the errors of leaves, in a profile, in its JSON and in its page."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

import roller
from roller.errors import ArtifactError
from roller.hardware import load_spec
from roller.hardware.is_spec_calibrated import is_calibrated
from roller.hardware.sourced_numbers import SourcedNumber
from roller.insight.cost.operator_price import LaunchPrice
from roller.insight.measured_step import MeasuredStep
from roller.insight.onnx_models import KernelShare
from roller.insight.step_profile.measured_profile import profile_of_measured_step
from roller.insight.step_profile.node import Node, Seconds, tree_with_node_intervals
from roller.insight.step_profile.predicted_profile import relative_price_interval
from roller.insight.step_profile.profile_json import load_profile, profile_from_json_data, profile_to_json_data
from roller.insight.step_profile.tree_builder import NodeKey, TreeBuilder
from roller.insight.trace.trace import Operator, Trace
from tests.insight.step_profile.profiles import small_profile

LINE, OPERATOR = NodeKey("line", "a.py:3"), NodeKey("operator", "mm")


def a_tree() -> Node:
    tree = TreeBuilder()
    kernel = (LINE, OPERATOR, NodeKey("kernel", "gemm"))
    tree.add_time(kernel, "forward", Seconds(0.5, 0.25, 0.125), error=(0.5, 2.0))
    tree.add_time(kernel, "backward", Seconds(1.0, 1.0, 0.0), error=(0.5, 2.0))
    tree.add_time((LINE, NodeKey("call", "cudaLaunchKernel")), "forward", Seconds(0.25, 0.0, 0.5))
    return tree.build()


def test_ends_sum_to_those_of_the_parent_and_host_time_counts_as_it_is():
    root = a_tree()
    assert root.interval_s == (0.25 + 0.5 + 0.25, 1.0 + 2.0 + 0.25) and root.device_interval_s == (0.625, 2.5)
    assert root.lower["forward"] == Seconds(0.25 + 0.25, 0.125, 0.625)
    assert root.upper["backward"] == Seconds(2.0, 2.0, 0.0)
    call = next(node for node in root.walk() if node.kind == "call")
    assert call.interval_s == (0.25, 0.25)
    for node in root.walk():
        if node.children:
            for end in (0, 1):
                assert node.interval_s[end] == math.fsum(child.interval_s[end] for child in node.children)


def test_a_tree_without_errors_has_no_intervals():
    tree = TreeBuilder()
    tree.add_time((LINE, OPERATOR), "forward", Seconds(0.5, 0.5, 0.0))
    assert all(n.interval_s is None and not n.lower for n in tree.build().walk())


def test_calls_whose_errors_differ_have_their_mean_by_time():
    tree = TreeBuilder()
    for took, error in ((0.75, (0.5, 1.5)), (0.25, (0.9, 3.5))):
        tree.add_time((OPERATOR, NodeKey("kernel", "k")), "forward", Seconds(took, took, 0.0), error=error)
    root = tree.build()
    assert root.children[0].children[0].error == pytest.approx((0.6, 2.0), rel=1e-15)
    assert root.interval_s == pytest.approx((0.6, 2.0), rel=1e-15)


def test_the_error_of_a_price():
    assert relative_price_interval(LaunchPrice("k", 1, 2.0, "dram", None, 1.0, 3.0)) == (0.5, 1.5)
    assert relative_price_interval(LaunchPrice("k", 0, 0.0, "none", None, 0.0, 0.0)) is None
    assert relative_price_interval(LaunchPrice("k", 1, 2.0, "dram")) is None, "of unknown error"


def test_intervals_survive_the_json_to_the_last_digit():
    profile = small_profile()
    again = profile_from_json_data(json.loads(json.dumps(profile_to_json_data(profile))))
    nodes = list(zip(profile.root.walk(), again.root.walk(), strict=True))
    assert [(a.lower, a.upper) for a, _ in nodes] == [(b.lower, b.upper) for _, b in nodes]
    assert again == profile and any(a.error for a, _ in nodes)
    rows = profile_to_json_data(profile)["nodes"]
    assert [row.get("error") for row in rows] == [n.error and list(n.error) for n, _ in nodes]


def test_an_error_that_excludes_its_time_is_refused():
    data = json.loads(json.dumps(profile_to_json_data(small_profile())))
    row = next(row for row in data["nodes"] if "error" in row)
    row["error"] = [1.1, 1.2]
    with pytest.raises(ArtifactError, match=r"the error \[1\.1, 1\.2\]"):
        profile_from_json_data(data)


def test_older_files_have_no_intervals():
    old = load_profile(__file__.replace("test_intervals.py", "version_1.json"))
    assert all(node.interval_s is None for node in old.root.walk()) and old.label == old.source


def test_lines_sum_the_intervals_of_their_instances():
    profile = small_profile()
    line = profile.line("net/model.py:11")
    lower = math.fsum(part.wall_s for part in line.lower.values())
    assert lower == pytest.approx(math.fsum(i.node.interval_s[0] for i in line.instances), rel=1e-12)
    assert lower < line.wall_s


def test_a_deep_tree_has_intervals():
    leaf = Node("kernel", "k", 1, {"forward": Seconds(1.0, 1.0, 0.0)}, error=(0.5, 2.0))
    for depth in range(5000):
        leaf = Node("module", f"m{depth}", 1, leaf.seconds, children=(leaf,))
    assert tree_with_node_intervals(leaf).interval_s == (0.5, 2.0)


def test_only_rates_of_the_very_device_calibrate(tmp_path):
    from roller.hardware.detect_cpu_spec import detect_cpu_without_probe
    from roller.probing import MeasuredValue, insert_measured_values, spec_to_yaml

    here, published = detect_cpu_without_probe(), load_spec("v100")
    assert not is_calibrated(here) and not is_calibrated(published)
    rate = {p: v * 0.9 for p, v in here.values().items() if p.startswith("compute.") and v > 1}
    probed = here.with_overrides(rate, "measured")
    assert is_calibrated(probed) and is_calibrated(probed.sustained)
    assert not is_calibrated(probed.with_overrides({"clock_hz": 1.0e9})), "set by hand: another device"
    assert not is_calibrated(replace(probed, machine="")), "any device of the name"
    text = insert_measured_values(
        spec_to_yaml(published, "mine"), {"memory_layers.global.bandwidth_bytes_per_s": MeasuredValue(8.1e11, 0.01, 9)},
        "probed 2026-05-01 by roller probe",
    )  # fmt: skip
    (tmp_path / "mine.yaml").write_text(text)
    assert is_calibrated(load_spec(str(tmp_path / "mine.yaml"))), "a GPU's probe writes the spread"


def test_the_spread_of_another_number_calibrates_no_rate():
    published = load_spec("v100")
    rate, other = "memory_layers.global.bandwidth_bytes_per_s", "memory_layers.global.latency_s"
    for repeated, expected in ((rate, True), (other, False)):
        mine = replace(
            published, machine="", source_items=((rate, "measured"), (other, "measured")),
            written=(SourcedNumber(rate, (("measured", 8.1e11),)), SourcedNumber(repeated, (("measured", 1.0),),
                                                                                 spread=0.01)),
        )  # fmt: skip
        assert is_calibrated(mine) == expected


def test_a_prediction_for_a_probed_device_is_calibrated(tmp_path):
    pytest.importorskip("torch")
    import torch

    from roller.hardware.detect_cpu_spec import detect_cpu_without_probe

    here = detect_cpu_without_probe()
    probed = here.with_overrides({"compute.ops_per_cycle_per_unit.fma": 16.0}, "measured")
    step = roller.trace(torch.nn.Linear(8, 4), torch.zeros(2, 8), optimizer="sgd")
    for spec, label in ((here, "predicted"), (probed, "calibrated")):
        found = roller.profile(step, spec)
        assert (found.source, found.label) == ("predicted", label)
        assert profile_from_json_data(profile_to_json_data(found)).label == label and label in str(found)
        assert step.forecast(spec).to_dict()["kind"] == label
        assert found.root.interval_s == pytest.approx((found.lower_s, found.upper_s), rel=1e-6)


def test_results_that_are_built_by_position_need_no_interval():
    kernel, launch = KernelShare("k", 2, 1.0, 0.5, "dram"), LaunchPrice("k", 1, 2.0, "dram")
    assert (kernel.resource, kernel.lower, launch.resource, launch.upper) == ("dram", None, "dram", None)
    product = Operator(0, "aten.mm.default", "forward", (), ())
    found = MeasuredStep(Trace((product,), (), {}, (0, 1)), (0.5,), 1.0, 0.9, 1.1, True, (1.0,), 0, "here", ("a note",))
    assert (found.iteration_s, found.machine, found.notes) == (1.0, "here", ("a note",))
    assert {node.error for node in profile_of_measured_step(found).root.walk()} == {None}
