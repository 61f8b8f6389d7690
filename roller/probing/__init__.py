"""Probes of a device, one per quantity: robust values, their spread, and the YAML that stores them."""

from roller.probing.measured import MAX_SPREAD, Measured, combine_rounds, median_of_fastest_windows, split_by_spread
from roller.probing.probe import Finding, Probe, Statement, read_statement
from roller.probing.registry import microbench_folder, probes
from roller.probing.spec_yaml import insert_measured_values, mark_errors_validated, save_spec, spec_to_yaml

__all__ = [
    "MAX_SPREAD", "Finding", "Measured", "Probe", "Statement", "combine_rounds", "median_of_fastest_windows",
    "microbench_folder", "probes",
    "mark_errors_validated", "save_spec", "spec_to_yaml", "split_by_spread", "read_statement", "insert_measured_values",
]  # fmt: skip
