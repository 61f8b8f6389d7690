"""The micro performance model: predicts times from the DeviceSpec and the tiles, with nothing fitted per operator."""

from roller.perf.estimate import Estimate
from roller.perf.term_tree import RULES, Term
from roller.perf.tile_batch import TileBatch, batch_of

__all__ = [
    "RULES",
    "Estimate",
    "Term",
    "TileBatch",
    "batch_of",
]
