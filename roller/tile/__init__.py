"""Tiles (rTiles), tiled programs (rPrograms), tile instructions and alignment rules."""

from roller.tile.program import RProgram
from roller.tile.structures import STRUCTURES

__all__ = ["STRUCTURES", "RProgram"]
