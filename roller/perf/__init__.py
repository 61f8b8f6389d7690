"""The micro performance model: predicts times from the DeviceSpec and the tiles, with nothing fitted per operator."""

from roller.perf.batch import TileBatch, batch_of
from roller.perf.estimate import Estimate
from roller.perf.terms import RULES, Term

__all__ = [
    "RULES",
    "Estimate",
    "Term",
    "TileBatch",
    "batch_of",
]
