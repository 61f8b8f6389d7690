"""The micro performance model: everything from the DeviceSpec and the tile, nothing fitted per operator."""

from roller.perf.batch import TileBatch
from roller.perf.estimate import Estimate

__all__ = ["Estimate", "TileBatch"]
