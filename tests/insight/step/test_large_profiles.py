"""Profiles of hundreds of megabytes: synthetic ones are as expected, and reading them takes little memory."""

from __future__ import annotations

import math
import multiprocessing
import resource

import pytest

from benchmarks.insight.kineto_file import write_kineto_file
from roller.insight.step.breakdown import breakdown
from roller.insight.step.kineto_reader import read_profile
from roller.insight.step.memory_curve import memory_curves
from roller.insight.step.profile_graph import build_graph
from roller.insight.step.replay import replay
from roller.insight.step.simulate import simulate
from roller.insight.step.step_categories import step_categories

#: Blocks of a small step.
BLOCKS = 6
#: Forward and backward launches of a block, with one of the optimizer, of 40 us each.
LAUNCHES = 3 + 4 + 1


def test_a_synthetic_profile_is_what_was_written(tmp_path):
    path = tmp_path / "profile.json"
    assert write_kineto_file(path, 0, BLOCKS) == 2
    profile = read_profile(path, memory=True)
    assert profile.notes == () and profile.device_signs
    graph = build_graph(profile.events)
    assert graph.iterations == (0, 1) and abs(replay(graph).error) < 0.01
    rows = breakdown(graph, simulate(graph), "kernel")
    assert sum(row.kernels for row in rows) == 2 * BLOCKS * LAUNCHES
    found = step_categories(profile)
    for step in found.steps:
        assert step.category_us["kernel"] == pytest.approx(BLOCKS * LAUNCHES * 40.0, abs=BLOCKS * LAUNCHES * 0.25)
        assert step.category_us["loader"] == pytest.approx(280.0, abs=0.5)
        assert math.fsum(step.category_us.values()) == pytest.approx(step.duration_us, rel=1e-9)
    (curve,) = memory_curves(profile)
    assert len(curve.live()) == 3 * BLOCKS and curve.unknown_bytes() == 1 << 30 and curve.live(1e18) == ()
    assert {x.context.operator for x in curve.live()} == {
        "aten::cudnn_convolution", "aten::cudnn_batch_norm", "aten::clamp_min_"
    }  # fmt: skip
    assert {x.context.module for x in curve.live()} == {
        f"{name}_{n}" for n in range(BLOCKS) for name in ("Block", "Batch_Norm", "Relu_")
    }


def _peak_bytes(path, connection):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    profile = read_profile(path, memory=True)
    graph = build_graph(profile.events)
    breakdown(graph, simulate(graph), "kernel")
    step_categories(profile)
    memory_curves(profile)
    connection.send(1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before))


def test_memory_of_a_large_profile_is_a_few_times_that_of_its_file(tmp_path):
    # 200 MB may take 2 GiB and 1 GB 8 GiB, interpreter included
    path = tmp_path / "profile.json"
    write_kineto_file(path, 60_000_000)
    receiver, sender = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.get_context("spawn").Process(target=_peak_bytes, args=(path, sender))
    child.start()
    taken = receiver.recv()
    child.join()
    assert taken < 3 * path.stat().st_size
