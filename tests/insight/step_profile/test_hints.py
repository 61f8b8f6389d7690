"""Hints: the answers of the search for what helps, each at its line."""

from __future__ import annotations

from dataclasses import replace

import pytest

from roller.insight.step.graph import StepGraph
from roller.insight.step_profile.hints import hints
from roller.insight.trace.trace import Frame
from roller.insight.whatif.search import search
from tests.insight.step.graphs import training

LINES = {"forward": 10, "backward": 10, "optimizer": 20}


def graph_with_lines() -> StepGraph:
    graph = training()
    tasks = [
        replace(t, context=t.context._replace(stack=(Frame("train.py", LINES.get(t.context.phase, 1)),)))
        for t in graph.tasks
    ]
    return replace(graph, tasks=tasks)


def test_hints_are_what_the_search_finds_in_its_order_and_with_its_numbers():
    graph = graph_with_lines()
    found, wanted = hints(graph, force=True), search(graph, force=True)
    assert [x.change for x in found] == [x.name for x in wanted]
    for mine, theirs in zip(found, wanted, strict=True):
        if theirs.answer is None:
            assert mine.not_asked == theirs.reason
            continue
        answer = theirs.answer
        assert mine.iteration_s == pytest.approx(answer.iteration_us / 1e6, rel=1e-12)
        assert mine.delta_s == pytest.approx((answer.iteration_us - answer.baseline_us) / 1e6, rel=1e-12)
        assert (mine.is_hardly_anything, mine.is_bound) == (answer.is_hardly_anything, theirs.is_bound)
    assert any(x.is_hardly_anything for x in found)


def test_a_hint_is_at_the_line_that_it_changes_most():
    found = {x.change: x for x in hints(graph_with_lines(), force=True)}
    optimizer, amp = found["ZeroTime(phase=optimizer)"], found["AMP()"]
    assert optimizer.line == "train.py:20" and optimizer.line_delta_s < 0 and optimizer.is_bound
    assert amp.line == "train.py:10" and amp.delta_s < 0
