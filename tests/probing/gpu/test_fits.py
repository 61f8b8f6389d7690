"""The fits find the constants that synthetic times were made from, and those of the published tables."""

import numpy as np
import pytest

import roller
from roller.errors import SpecError
from roller.probing.gpu.compute import _BANKS, _STRIDES, bank_conflict_degree
from roller.probing.gpu.fit_model_constants import (
    choose_proportional_hypothesis,
    find_capacity_edge,
    fit_bandwidth_saturation,
    fit_reduction_step_times,
)
from roller.probing.gpu.memory import _RUNS, _SIZES, count_touched_transactions
from roller.probing.robust_window_statistics import MAX_SPREAD
from roller.templates.gpu import dram_bandwidth, unit_flops_per_s
from tests.offenders import every
from tests.perf.published import columns

V100 = roller.load_spec("v100")


def noisy(values, relative, seed=1):
    return values * np.exp(relative * np.random.default_rng(seed).standard_normal(np.shape(values)))


@every("name", ["v100", "h200", "mi250x"])
@every("noise", [0.0, 0.01])
def test_saturation_of_a_known_device_is_recovered(name, noise):
    spec = roller.load_spec(name)
    layer = spec.layer("global")
    warps = 2.0 ** np.arange(2, 16)
    alone, exponent, peak = fit_bandwidth_saturation(warps, noisy(dram_bandwidth(spec, warps), noise), 100)
    assert alone.value == pytest.approx(layer.bandwidth_per_teu_bytes_per_s, rel=0.05)
    assert exponent.value == pytest.approx(layer.saturation_exponent, rel=0.05)
    assert peak.value == pytest.approx(layer.bandwidth_bytes_per_s, rel=0.05)
    assert max(alone.spread, exponent.spread, peak.spread) <= MAX_SPREAD


@pytest.mark.parametrize("name", ["v100", "h200", "mi250x"])
def test_steps_of_a_known_device_are_recovered(name):
    spec = roller.load_spec(name)
    outputs, warps = (x.ravel().astype(float) for x in np.meshgrid([1, 4, 16, 32, 64], [1, 2, 4, 8, 16]))
    rate = unit_flops_per_s(spec, outputs, warps)
    seconds = noisy(2 * outputs * spec.teu.lanes * warps / rate, 0.01)
    schedulers = spec.teu.schedulers_per_unit
    latency, issue, fma = fit_reduction_step_times(outputs, warps, seconds, schedulers, 100)
    assert latency.value == pytest.approx(spec.execution.step_latency_s, rel=0.05)
    assert issue.value == pytest.approx(spec.execution.step_issue_s, rel=0.05)
    per_cycle = spec.teu.lanes * schedulers / fma.value / spec.clock_hz
    assert per_cycle == pytest.approx(spec.compute.ops_per_cycle_per_unit["fma"], rel=0.05)
    assert max(latency.spread, issue.spread, fma.spread) <= MAX_SPREAD


def test_published_dram_table_gives_the_numbers_of_the_specification():
    t = columns("v100_glbmem_small")
    narrow = t["warps_per_block"] == 2
    alone, exponent, peak = fit_bandwidth_saturation(t["total_warps"][narrow], t["gb_s"][narrow] * 1e9, len(t["gb_s"]))
    # Blocks of two warps, as the probe has them: the specification's note gives 7.7e8 for those.
    assert alone.value == pytest.approx(7.7e8, rel=0.05)
    fitted = ((t["total_warps"] * alone.value) ** -exponent.value + peak.value**-exponent.value) ** (
        -1 / exponent.value
    )
    errors = np.abs(fitted[narrow] / t["gb_s"][narrow] / 1e9 - 1)
    assert errors.mean() <= 0.02
    ours = np.abs(dram_bandwidth(V100, t["total_warps"][narrow]) / t["gb_s"][narrow] / 1e9 - 1)
    assert errors.mean() <= ours.mean()


def test_published_table_of_one_unit_gives_the_multiply_add_rate():
    t = columns("v100_sm_gflops")
    outputs, warps = t["reg_tile_elems"], t["warps_per_sm"]
    seconds = 2 * outputs * 32 * warps / (t["gflops_per_sm"] * 1e9)
    latency, issue, fma = fit_reduction_step_times(outputs, warps, seconds, 4, len(seconds))
    assert 128 / fma.value / 1.38e9 == pytest.approx(64, rel=0.05)
    assert latency.value == pytest.approx(V100.execution.step_latency_s, rel=0.10)
    assert issue.value == pytest.approx(V100.execution.step_issue_s, rel=0.10)


def test_noise_widens_the_spread_beyond_what_is_written():
    warps = 2.0 ** np.arange(2, 16)
    alone, exponent, _ = fit_bandwidth_saturation(warps, noisy(dram_bandwidth(V100, warps), 0.3), 100)
    assert exponent.spread > MAX_SPREAD and alone.spread > MAX_SPREAD


@pytest.mark.parametrize("size", _SIZES[1:])
def test_transaction_size_is_chosen(size):
    counts = {s: np.array([count_touched_transactions(r, o, s) for r, o in _RUNS], float) for s in _SIZES}
    assert choose_proportional_hypothesis(noisy(1e-9 * counts[size], 0.03), counts, "transaction") == size


@every("pair", [p for p in _BANKS if p != (16, 8)])
@every("lanes", [32, 64])
def test_banks_are_chosen(pair, lanes):
    counts = {p: np.array([bank_conflict_degree(s, lanes, *p) for s in _STRIDES], float) for p in _BANKS}
    assert choose_proportional_hypothesis(noisy(1e-9 * counts[pair], 0.03), counts, "banks") == pair


def test_times_that_no_size_explains_are_refused():
    counts = {s: np.array([count_touched_transactions(r, o, s) for r, o in _RUNS], float) for s in _SIZES}
    with pytest.raises(SpecError, match=r"transaction: expected one size that explains the times, got .* leaves"):
        choose_proportional_hypothesis(np.array([float(r) for r, _ in _RUNS]), counts, "transaction")


def test_edge_of_a_cache_that_forgets_gradually():
    sizes = np.array([0.25, 0.5, 0.75, 0.875, 1.0, 1.125, 1.25, 1.5, 1.75, 2.0, 3.0, 4.0, 6.0])
    hit = 1 / (1 + (sizes / 1.0) ** 12)
    assert find_capacity_edge(sizes, hit * 1.0 + (1 - hit) * 2.6) == pytest.approx(1.0, rel=0.05)
    with pytest.raises(SpecError, match="expected the time to rise"):
        find_capacity_edge(sizes, np.ones(len(sizes)))
