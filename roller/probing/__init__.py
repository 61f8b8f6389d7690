"""Probes of a device, one per quantity: robust values, their spread, and the YAML that stores them."""

from roller.probing.probe_header import Probe, ProbeHeader, ProbeResult, read_probe_header
from roller.probing.registry import microbench_folder, probes
from roller.probing.robust_window_statistics import (
    MAX_SPREAD,
    MeasuredValue,
    accept_or_reject_by_spread,
    median_of_fastest_windows,
    median_of_good_rounds,
)
from roller.probing.write_measured_spec_yaml import (
    check_and_write_spec,
    insert_measured_values,
    mark_errors_validated,
    spec_to_yaml,
)

__all__ = [
    "MAX_SPREAD", "ProbeResult", "MeasuredValue", "Probe", "ProbeHeader", "median_of_good_rounds",
    "median_of_fastest_windows",
    "microbench_folder", "probes",
    "mark_errors_validated", "check_and_write_spec", "spec_to_yaml", "accept_or_reject_by_spread",
    "read_probe_header", "insert_measured_values",
]  # fmt: skip
