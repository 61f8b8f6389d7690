"""The difference of two profiles: sums, signs, moved lines, and the line of an edit first."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roller.insight.step_profile.difference import difference
from roller.insight.step_profile.hints_difference_json import difference_data
from roller.insight.step_profile.node import Seconds
from roller.insight.step_profile.step_profile import StepProfile
from roller.insight.step_profile.tree_builder import NodeKey, TreeBuilder

KEYS = st.tuples(
    st.sampled_from([NodeKey("line", "a.py:1"), NodeKey("line", "a.py:2"), NodeKey("module", "net")]),
    st.sampled_from([NodeKey("module", "net.0"), NodeKey("line", "a.py:3"), NodeKey("operator", "mm")]),
    st.sampled_from([NodeKey("kernel", "gemm"), NodeKey("kernel", "add")]),
)
LEAVES = st.lists(st.tuples(KEYS, st.floats(0.0, 1.0), st.integers(0, 1 << 40)), min_size=1)
NET = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(512, WIDTH)
        self.head = nn.Linear(512, 8)

    def forward(self, x):
        return self.head(x).sum() + self.body(x).sum()
"""
STEP = """

def model_provider():
    return Net()


def input_provider(batch_size=4096):
    return torch.zeros(batch_size, 512)


def iteration_provider(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x):
        optimizer.zero_grad()
        model(x).backward()
        optimizer.step()

    return step
"""


def profile_of(leaves):
    tree = TreeBuilder()
    for path, took, size in leaves:
        tree.add_time(path, "forward", Seconds(took, took, 0.0))
        tree.add_bytes(path[:2], "activation", held=size)
    root = tree.build()
    return StepProfile("step", "predicted", "a100", root, root.wall_s, root.wall_s, root.wall_s)


@given(LEAVES, LEAVES)
def test_changes_of_lines_and_of_children_sum_to_that_of_the_step_and_the_reverse_is_the_negative(one, other):
    before, after = profile_of(one), profile_of(other)
    found, back = difference(before, after), difference(after, before)
    assert found.delta_bytes == after.total_bytes - before.total_bytes == sum(x.delta_bytes for x in found.lines)
    assert found.delta_s == pytest.approx(math.fsum(x.delta_s for x in found.lines), abs=1e-9)
    assert {(x.name, x.delta_s, x.delta_bytes) for x in found.lines} == {
        (x.name, -x.delta_s, -x.delta_bytes) for x in back.lines
    }
    todo = [found.root]
    for node in todo:
        todo += node.children
        if node.children:
            assert node.delta_bytes == sum(child.delta_bytes for child in node.children)
            assert node.delta_s == pytest.approx(math.fsum(child.delta_s for child in node.children), abs=1e-9)


def test_a_profile_differs_from_itself_in_nothing():
    same = profile_of([((NodeKey("line", "a.py:1"), NodeKey("operator", "mm"), NodeKey("kernel", "gemm")), 0.5, 7)])
    found = difference(same, same)
    assert (found.delta_s, found.delta_bytes) == (0.0, 0) and all(x.delta_s == x.delta_bytes == 0 for x in found.lines)


def test_lines_that_an_edit_moved_are_the_same_lines():
    kernel = (NodeKey("operator", "mm"), NodeKey("kernel", "gemm"))
    before = profile_of(
        [((NodeKey("line", "a.py:1"), *kernel), 0.5, 0), ((NodeKey("line", "a.py:2"), *kernel), 0.25, 0)]
    )
    after = profile_of(
        [((NodeKey("line", "a.py:2"), *kernel), 0.5, 0), ((NodeKey("line", "a.py:3"), *kernel), 0.125, 0)]
    )
    found = difference(before, after, {"a.py:1": "a.py:2", "a.py:2": "a.py:3"})
    assert [(x.name, x.delta_s) for x in found.lines] == [("a.py:3", -0.125), ("a.py:2", 0.0)]
    assert [(x.name, x.delta_s) for x in found.root.children] == [("a.py:3", -0.125), ("a.py:2", 0.0)]


def test_the_line_of_a_changed_layer_comes_first(tmp_path):
    pytest.importorskip("torch")
    from roller.insight.step_profile.profiling import profile

    profiles = []
    for width in (999, 1000):
        path = tmp_path / "train.py"
        path.write_text(f"WIDTH = {width}\n" + NET + STEP)
        profiles.append(profile(path, "a100"))
    found = difference(*profiles)
    text = path.read_text().splitlines()
    first = next(x for x in found.lines if x.name)
    assert "self.body = nn.Linear" in text[int(first.name.rpartition(":")[2]) - 1]
    assert first.made_delta_bytes > 0 and first.made_delta_s != 0.0


def test_the_label_of_a_difference_is_the_less_certain_one():
    one = profile_of([((NodeKey("line", "a.py:1"), NodeKey("operator", "mm"), NodeKey("kernel", "gemm")), 0.5, 7)])
    calibrated, measured = replace(one, is_calibrated=True), replace(one, source="measured")
    pairs = ((one, calibrated), (calibrated, calibrated), (measured, calibrated), (measured, measured))
    found = [difference_data(difference(*pair)) for pair in pairs]
    assert [data["kind"] for data in found] == ["predicted", "calibrated", "calibrated", "measured"]
    assert (found[2]["before"]["label"], found[2]["after"]["label"]) == ("measured", "calibrated")


def test_deep_trees_are_compared_without_recursion():
    def deep(took):
        tree = TreeBuilder()
        tree.add_time(tuple(NodeKey("line", f"a.py:{n}") for n in range(3000)), "forward", Seconds(took, took))
        root = tree.build()
        return StepProfile("step", "predicted", "a100", root, root.wall_s, 0.0, 9.0)

    found = difference(deep(1.0), deep(3.0))
    assert found.delta_s == 2.0 and [row.name for row in found.lines] == ["a.py:2999"]


def test_a_notebook_shows_the_lines_that_change():
    def profile_of(seconds: float) -> StepProfile:
        tree = TreeBuilder()
        for line, took in (("a.py:1", seconds), ("<b>.py:2", 0.5)):
            tree.add_time((NodeKey("line", line), NodeKey("kernel", "k")), "forward", Seconds(took, took, 0.0))
        root = tree.build()
        return StepProfile("a.py", "predicted", "a100", root, root.wall_s, root.wall_s, root.wall_s)

    shown = difference(profile_of(0.25), profile_of(0.75))._repr_html_()
    assert "750 ms to 1.25 s a step, predicted" in shown
    assert "<td>a.py:1</td><td>250 ms</td><td>750 ms</td><td>500 ms</td>" in shown and "&lt;b" not in shown
