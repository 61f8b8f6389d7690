"""The tree of a profile: paths of calls, sums of children, modules and lines."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roller.insight.step_profile.lines import lines_of_tree
from roller.insight.step_profile.node import Seconds
from roller.insight.step_profile.tree_builder import NodeKey, TreeBuilder, tree_path_of_call
from roller.insight.trace.trace import Frame

FLOATS = st.floats(0.0, 10.0)
KEYS = st.tuples(
    st.sampled_from([NodeKey("line", "a.py:1"), NodeKey("line", "a.py:2"), NodeKey("line", "b.py:1")]),
    st.sampled_from([NodeKey("module", "net"), NodeKey("module", "net.0"), NodeKey("operator", "aten.mm.default")]),
    st.sampled_from([NodeKey("kernel", "gemm"), NodeKey("kernel", "add")]),
)
TIMES = st.lists(st.tuples(KEYS, st.sampled_from(["forward", "backward"]), st.tuples(FLOATS, FLOATS, FLOATS)))
BYTES = st.lists(st.tuples(KEYS, st.sampled_from(["activation", "parameter"]), st.integers(0, 1 << 40)))


def names(path):
    return [key.name for key in path]


@given(TIMES, BYTES)
def test_children_sum_to_their_parents(times, sizes):
    tree = TreeBuilder()
    for path, phase, seconds in times:
        tree.add_time(path, phase, Seconds(*seconds), bound="dram", pipes=[("fma", seconds[1])])
    for path, kind, size in sizes:
        tree.add_bytes(path[:2], kind, held=size, requested=size // 2)
    root = tree.build()
    assert root.wall_s == pytest.approx(math.fsum(x[2][0] for x in times), abs=1e-9)
    assert root.total_held_bytes == sum(size for *_, size in sizes)
    for node in root.walk():
        if node.children:
            for part in ("wall_s", "device_s", "host_s"):
                whole = math.fsum(getattr(child, part) for child in node.children)
                assert getattr(node, part) == pytest.approx(whole, abs=1e-9)
            for kind, size in node.held_bytes.items():
                assert size == sum(child.held_bytes.get(kind, 0) for child in node.children)
            assert sum(node.requested_bytes.values()) == sum(
                sum(child.requested_bytes.values()) for child in node.children
            )


def test_a_path_has_the_lines_and_between_them_the_modules():
    stack = (
        Frame("train.py", 50, "step"),
        Frame("net.py", 9, "Net.forward"),
        Frame("net.py", 4, "Block.forward", "a.0"),
    )
    assert names(tree_path_of_call(stack, "a.0.norm", "aten.relu.default")) == [
        "train.py:50", "net.py:9", "a", "a.0", "net.py:4", "a.0.norm", "aten.relu.default",
    ]  # fmt: skip


def test_a_module_that_is_called_from_elsewhere_keeps_its_whole_path():
    stack = (Frame("net.py", 9, "Net.forward", "decoder"),)
    assert names(tree_path_of_call(stack, "encoder.words")) == ["decoder", "net.py:9", "encoder.words"]


def test_names_that_are_no_paths_of_modules_are_not_cut():
    assert names(tree_path_of_call((), "## forward: a.b ##")) == ["## forward: a.b ##"]


def test_a_module_with_one_module_in_it_is_left_out():
    tree = TreeBuilder()
    for name in ("net.blocks.0", "net.blocks.1"):
        tree.add_time((*tree_path_of_call((), name, "mm"), NodeKey("kernel", "gemm")), "forward", Seconds(1.0, 1.0))
    (blocks,) = tree.build().children
    assert blocks.name == "net.blocks" and {child.name for child in blocks.children} == {"net.blocks.0", "net.blocks.1"}


def test_parameters_belong_to_the_first_call_of_their_module_or_to_the_nearest_around_it():
    tree = TreeBuilder()
    called = tree_path_of_call((Frame("net.py", 3),), "head.norm", "aten.layer_norm")
    tree.add_time((*called, NodeKey("kernel", "k")), "forward", Seconds(1.0, 1.0))
    assert names(tree.tree_path_of_module("head.norm")) == ["net.py:3", "head", "head.norm"]
    assert names(tree.tree_path_of_module("head.never.called")) == [
        "net.py:3",
        "head",
        "head.never",
        "head.never.called",
    ]
    assert names(tree.tree_path_of_module("other")) == ["other"] and tree.tree_path_of_module("") == ()


def test_a_line_that_calls_itself_counts_once_and_has_every_instance():
    tree = TreeBuilder()
    outer, inner = Frame("net.py", 7, "Tree.forward"), Frame("net.py", 7, "Tree.forward", "left")
    for stack, module in (((outer,), ""), ((outer, inner), "left")):
        tree.add_time(
            (*tree_path_of_call(stack, module, "mm"), NodeKey("kernel", "gemm")), "forward", Seconds(1.0, 1.0)
        )
    tree.add_bytes(tree.tree_path_of_module("left"), "parameter", name="weight", held=12, registered=("net.py:2",))
    made, called = lines_of_tree(tree.build())
    assert (made.name, made.registered_bytes, made.instances) == ("net.py:2", 12, ())
    assert (called.name, called.wall_s, called.total_held_bytes) == ("net.py:7", 2.0, 12)
    assert [(x.module, x.node.wall_s) for x in called.instances] == [("", 2.0), ("left", 1.0)]


def test_deep_stacks_need_no_recursion():
    tree = TreeBuilder()
    stack = tuple(Frame("net.py", n + 1) for n in range(5000))
    tree.add_time((*tree_path_of_call(stack, "", "mm"), NodeKey("kernel", "gemm")), "forward", Seconds(1.0, 1.0))
    root = tree.build()
    assert sum(1 for _ in root.walk()) == 5003 and root.wall_s == 1.0


def test_a_tree_of_many_levels_is_compared_and_has_its_lines_without_recursion_or_squares():
    def deep(last):
        tree, path = TreeBuilder(), tuple(NodeKey("line", f"a.py:{n}") for n in range(20_000))
        tree.add_time((*path, NodeKey("operator", last)), "forward", Seconds(1.0, 1.0))
        return tree.build()

    one, same, other = deep("mm"), deep("mm"), deep("add")
    assert one == same and one != other and one != "a tree"
    assert len(lines_of_tree(one)) == 20_000 and {line.wall_s for line in lines_of_tree(one)} == {1.0}


def test_a_line_that_calls_itself_counts_once():
    tree, line, other = TreeBuilder(), NodeKey("line", "a.py:1"), NodeKey("line", "a.py:2")
    tree.add_time((line, other, line, NodeKey("operator", "mm")), "forward", Seconds(1.0, 1.0))
    tree.add_time((other, NodeKey("operator", "mm")), "forward", Seconds(2.0, 2.0))
    tree.add_time((line, NodeKey("operator", "mm")), "forward", Seconds(4.0, 4.0))
    assert {line.name: line.wall_s for line in lines_of_tree(tree.build())} == {"a.py:1": 5.0, "a.py:2": 3.0}


def test_names_with_hyphens_are_paths_of_modules():
    path = tree_path_of_call((Frame("a.py", 4, "", "net"),), "net.conv-1.0", "aten.mm")
    assert [key.name for key in path] == ["net", "a.py:4", "net.conv-1", "net.conv-1.0", "aten.mm"]
