"""rTiles, rPrograms, tile instructions, alignment rules."""

from roller.tile.program import RProgram
from roller.tile.structures import STRUCTURES

__all__ = ["STRUCTURES", "RProgram"]
