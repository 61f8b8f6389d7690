"""rTiles, rPrograms, tile instructions, alignment rules."""

from roller.tile.program import STRUCTURES, RProgram

__all__ = ["STRUCTURES", "RProgram"]
