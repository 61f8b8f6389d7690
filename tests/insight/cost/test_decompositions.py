"""Rules that take operators apart: what one does not describe is a call, and errors of a rule are not hidden."""

from __future__ import annotations

import pytest

from roller.insight.cost.compiled import operator_to_loop_nodes
from roller.insight.cost.compiled.loop_nodes import NodeBuilder, StorageVersion
from roller.insight.cost.compiled.operator_to_loop_nodes import add_operator_nodes
from tests.insight.cost.test_compiled import kernels, operator, tensor, trace, unary


def test_an_operator_that_a_rule_leaves_half_way_is_counted_once():
    dropped = operator("native_dropout.default", [], [tensor(1), tensor(2, dtype="bool")])  # of the host's tensor
    assert kernels(trace(dropped, given={0})) == [("aten.native_dropout", [], [1, 2])]


def test_a_tensor_that_a_rule_has_written_holds_its_value_from_before(monkeypatch):
    def half_way(builder, index, view):
        builder.add(index, view.operator, "pointwise", view.inputs, view.outputs, rows=4)
        raise operator_to_loop_nodes._UnsupportedArguments

    builder = NodeBuilder(9)
    add_operator_nodes(builder, 0, unary("neg", 0, 1))
    monkeypatch.setitem(operator_to_loop_nodes._RULES, "exp", half_way)
    add_operator_nodes(builder, 1, operator("exp_.default", [tensor(1)], [tensor(1)]))
    add_operator_nodes(builder, 2, unary("neg", 1, 2))
    assert [node.kind for node in builder.nodes] == ["pointwise", "extern", "pointwise"]
    assert [sorted(node.values()) for node in builder.nodes] == [
        [StorageVersion(0)],
        [StorageVersion(1)],
        [StorageVersion(1, 1)],
    ]


def test_an_error_in_a_rule_is_raised(monkeypatch):
    monkeypatch.setitem(operator_to_loop_nodes._RULES, "exp", lambda *_: int("no number"))
    with pytest.raises(ValueError, match="no number"):
        kernels(trace(unary("exp", 0, 1), given={0}))
