"""Every estimate says how far it may be off: from the spec, by what bounds it; ratios of candidates are surer."""

from __future__ import annotations

import json
import math

import pytest

import roller
from roller import ops
from roller.hardware import list_specs, load_spec, parse_spec, spec_folder
from roller.perf.estimate import Estimate
from roller.perf.expected_errors import UNVALIDATED, kernel_family_key, prediction_error, ranking_error
from tests.offenders import every

MATMUL = ops.matmul(512, 512, 512)


def test_the_error_is_that_of_what_bounds_the_estimate():
    spec = load_spec("v100")
    assert prediction_error(spec, "compute") == spec.accuracy.compute_error
    assert prediction_error(spec, "dram") == prediction_error(spec, "l2") == spec.accuracy.memory_error
    assert prediction_error(spec, "launch") == prediction_error(spec, "latency") == spec.accuracy.overhead_error
    wide = spec.with_overrides({"accuracy.compute_error": 0.4})
    plain = roller.ConstructOptions(top_k=1, pipelining=False)
    (found,) = roller.construct(ops.matmul(4096, 4096, 4096), wide, options=plain)
    assert (found.estimate.bottleneck, found.estimate.expected_error) == ("compute", 0.4)


@pytest.mark.parametrize(
    ("expr", "options", "mechanisms"),
    [
        (ops.matmul(1024, 1024, 1024), {"pipelining": False}, 0),
        (ops.matmul(1024, 1024, 1024), {}, 1),
        (ops.conv2d(8, 64, 58, 58, 64, 3, 3), {"pipelining": False, "windows": False}, 1),
    ],
)
def test_what_no_validated_kernel_did_widens_the_interval(expr, options, mechanisms):
    spec = load_spec("v100").with_overrides({"accuracy.mechanism_error": 0.3})
    (found,) = roller.construct(expr, spec, options=roller.ConstructOptions(top_k=1, **options))
    program, estimate = found.program, found.estimate
    assert (program.stages > 1) + program.structure.startswith("winograd") == mechanisms
    confirmed = prediction_error(spec, estimate.bottleneck)
    assert estimate.expected_error == pytest.approx(math.hypot(confirmed, 0.3 * math.sqrt(mechanisms)))


@every("name", list_specs())
def test_candidates_of_one_kernel_are_told_apart_better_and_predictions_worst(name):
    accuracy = load_spec(name).accuracy
    assert 0 < accuracy.same_kernel_error < accuracy.ranking_error < accuracy.prediction_error


def test_a_spec_without_the_section_is_trusted_less_than_any_that_has_it():
    text = (spec_folder() / "a100.yaml").read_text().partition("\naccuracy:")[0]
    spec = parse_spec(text, "a100.yaml")
    assert "accuracy" not in str(list(spec.values()))
    assert ranking_error(spec, same_kernel=True) == UNVALIDATED["same_kernel_error"]
    assert ranking_error(spec) == UNVALIDATED["ranking_error"]
    assert prediction_error(spec, "compute") == UNVALIDATED["prediction_error"]
    for name in list_specs():
        assert load_spec(name).accuracy.prediction_error <= UNVALIDATED["prediction_error"]
        assert load_spec(name).accuracy.ranking_error <= UNVALIDATED["ranking_error"]


def test_a_family_shares_its_kernel_whatever_the_block():
    found = roller.construct(MATMUL, "v100", top_k=10)
    for a in found:
        for b in found:
            same = a.program.tiles[0] == b.program.tiles[0] and (a.program.split_k > 1) == (b.program.split_k > 1)
            assert (kernel_family_key(a.program) == kernel_family_key(b.program)) == same


def test_the_interval_is_one_error_to_either_side():
    estimate = Estimate(2.0, "dram", (("dram_s", 2.0),), 0.25)
    low, high = estimate.interval_s
    assert math.log(high / 2.0) == pytest.approx(0.25) == math.log(2.0 / low)
    assert str(estimate) == "predicted 2000 ms ×/÷ 1.28, bound by dram"


def test_json_of_before_estimates_had_an_error_still_loads():
    old = json.loads('{"seconds": 0.5, "bottleneck": "dram", "terms": {"dram_s": 0.5}}')
    estimate = Estimate.from_dict(old)
    assert estimate.expected_error is None
    assert estimate.interval_s == (0.5, 0.5)
    assert str(estimate) == "predicted 500 ms, bound by dram"
    assert estimate.to_dict() == old
    new = Estimate(0.5, "dram", (("dram_s", 0.5),), 0.1)
    assert Estimate.from_dict(json.loads(json.dumps(new.to_dict()))) == new
