"""The micro performance model: everything from the DeviceSpec and the tile, nothing fitted per operator."""

from roller.perf.batch import TileBatch
from roller.perf.estimate import Estimate
from roller.perf.model import (
    batch_of,
    best_rows,
    estimate_best,
    estimate_block,
    estimate_explained,
    estimate_program,
    estimate_programs,
    fastest,
    price,
)
from roller.perf.terms import RULES, Term

__all__ = [
    "RULES",
    "Estimate",
    "Term",
    "TileBatch",
    "batch_of",
    "best_rows",
    "estimate_best",
    "estimate_block",
    "estimate_explained",
    "estimate_program",
    "estimate_programs",
    "fastest",
    "price",
]
