"""The comparison with published library kernels: what its rows mean, how errors are summed up, that it runs."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[2]))

import roller
from benchmarks.model_devices.accuracy import Found, by_bound, by_family, with_accuracy
from benchmarks.model_devices.cases import SPECS, THREAD_TILES, Case, cases, roofline_s
from benchmarks.model_devices.left_out import FREE, judged, left_out
from benchmarks.model_devices.pricing import Priced, priced
from benchmarks.model_devices.summary import Errors, lines, rank_verdicts, spearman
from roller.hardware import list_specs, load_spec, parse_spec, spec_folder

ALL = list(cases())


def priced_as(device, family, shape, measured_s, predicted_s, roof_s=1e-6):
    return Priced(Case(device, family, shape, measured_s, lambda: None), predicted_s, "compute", roof_s)


def test_every_published_kernel_is_a_case_with_a_time_of_its_own():
    assert sum(c.policy is None for c in ALL) == 792 + 720
    assert sum(c.policy is not None for c in ALL) == 1200 + 720  # products, rows and streams once more, a library's
    assert len({(c.device, c.family, c.shape, c.measured_s) for c in ALL}) > 0.99 * len(ALL)
    assert {c.device for c in ALL} == set(SPECS)
    assert all(c.measured_s > 0 for c in ALL)


@pytest.mark.parametrize("family", sorted({c.family for c in ALL}))
def test_one_case_of_each_family_prices_above_half_its_roofline(family):
    # Of a kernel that exists the model says no time far below what must be computed or moved.
    case = next(c for c in ALL if c.family == family and c.spec in list_specs())
    (found,) = priced([case], {case.spec: load_spec(case.spec)})
    assert 0.5 * found.roofline_s < found.predicted_s < 20 * case.measured_s


def test_named_tiles_have_the_threads_of_the_kernel_that_ran():
    for c in ALL:
        if c.tiles:
            shared, register = c.tiles["shared"], c.tiles["register"]
            threads = shared["i"] // register["i"] * (shared["j"] // register["j"])
            assert threads in (64, 128, 256)
            assert (max(register.values()), min(register.values())) in THREAD_TILES.values()


def test_transposed_operands_are_stored_transposed():
    linear = next(c for c in ALL if c.family == "linear")
    n, k = linear.shape[2:4]
    assert linear.expression().inputs[1].shape == (n, k)


def test_roofline_is_of_the_units_that_compute_the_dtype():
    h100 = load_spec("h100")
    fma, bf16 = (roofline_s(roller.ops.matmul(8192, 8192, 8192, dtype=t), h100) for t in ("float32", "bfloat16"))
    assert fma / bf16 == pytest.approx(2048 / 128)


def test_errors_are_of_ratios_and_ranks_of_order():
    e = Errors.of([1.0, 1.5, 3.0], [1.0, 2.0, 2.0])
    assert (e.mean, e.median, e.worst) == (pytest.approx(0.25), 0.25, 0.5)
    assert spearman(np.array([1.0, 2.0, 3.0]), np.array([3.0, 2.0, 1.0])) == pytest.approx(-1.0)


def test_speed_up_is_judged_on_shapes_both_devices_have():
    found = [
        priced_as("a100-sxm-80gb", "bf16 m>=512", (512, 1, 1), 4e-5, 4e-5),
        priced_as("h100-sxm", "bf16 m>=512", (512, 1, 1), 2e-5, 4e-5),
        priced_as("h100-sxm", "bf16 m>=512", (1024, 1, 1), 1e-4, 1e-4),
    ]
    line = next(x for x in lines(found) if x.family == "bf16 speed-up")
    assert (line.model.count, line.model.mean, line.verdict.holds) == (1, 0.5, False)
    assert [v.name.split(", ")[-1] for v in rank_verdicts(found)] == ["a100-sxm-80gb", "h100-sxm"]


def test_errors_of_a_specification_are_those_of_kernels_like_the_ones_that_ran():
    ours = Priced(Case("t4", "softmax", (1,), 1.0, lambda: None), 9.0, "dram", 1e-6)
    theirs = [replace(ours, case=replace(ours.case, policy="library"), predicted_s=s) for s in (2.0, 0.5) * 5]
    found = {x.name: x for x in by_bound([ours, *theirs])}
    assert found["prediction_error"].error == found["memory_error"].error == pytest.approx(np.log(2.0))
    assert found["memory_error"].kernels == 10 and "compute_error" not in found
    (family,) = by_family([ours, *theirs])
    assert (family.spec, family.name, family.kernels) == ("t4", "softmax", 10)


def test_written_errors_hold_for_the_numbers_they_were_found_with(tmp_path):
    text = (spec_folder() / "p4000.yaml").read_text()
    key = load_spec("p4000").numbers_key
    written = with_accuracy(text, {"prediction_error": Found("p4000", "prediction_error", 0.2, 480)}, key)
    spec = parse_spec(written, "p4000.yaml")
    assert spec.accuracy.prediction_error == 0.2 and not spec.doubt
    assert 0 < spec.accuracy.same_kernel_error < spec.accuracy.ranking_error < 0.2
    assert with_accuracy(written, {}, key) == written  # what was not found again stays
    changed = parse_spec(written.replace("blocks_per_unit: {datasheet: 32", "blocks_per_unit: {datasheet: 9"), "x.yaml")
    assert changed.accuracy.prediction_error == 0.5


def test_a_device_left_out_has_no_say_in_the_constants_it_is_predicted_with(monkeypatch):
    chosen = [c for c in ALL if judged(c) and c.device in ("p100-pcie-16gb", "v100-pcie-32gb")][::250]
    for name in FREE:
        monkeypatch.setitem(FREE, name, FREE[name][:2])
    found = list(left_out(chosen, {c.spec: load_spec(c.spec) for c in chosen}))
    assert {x.device for x in found} == {c.device for c in chosen}
    spoiled = [replace(c, measured_s=c.measured_s * 100) if c.device == "p100-pcie-16gb" else c for c in chosen]
    again = list(left_out(spoiled, {c.spec: load_spec(c.spec) for c in chosen}))
    assert len({x.constants for run in (found, again) for x in run if x.device == "p100-pcie-16gb"}) == 1
    assert all(x.limit == pytest.approx(0.15) for x in found if x.family == "linear")
