"""Descriptions of how construction finds programs, for explanations."""

from __future__ import annotations

#: Description of construction, by structure.
ENUMERATED = {
    structure: f"Tiles of a unit grow from {start} along the axes that save most exchange per byte of scratchpad; "
    "reduction steps and parts are enumerated, and the model's price chooses among all states on the way."
    for structure, start in (("tiled", "one vector of a worker"), ("matrix", "one pass of the matrix unit"),
                             ("rows", "one vector of a worker"), ("streaming", "one vector of a worker"))
}  # fmt: skip
