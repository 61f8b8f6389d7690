"""Probes of a device: each measures one quantity; robust values, their spread, and the YAML that stores them."""

from roller.probing.document import revalidated, save, spec_text, with_measured
from roller.probing.measured import MAX_SPREAD, Measured, agreed, best_of, split_by_spread
from roller.probing.probe import Finding, Probe, Statement, statement_of
from roller.probing.registry import microbench_folder, probes

__all__ = [
    "MAX_SPREAD", "Finding", "Measured", "Probe", "Statement", "agreed", "best_of", "microbench_folder", "probes",
    "revalidated", "save", "spec_text", "split_by_spread", "statement_of", "with_measured",
]  # fmt: skip
