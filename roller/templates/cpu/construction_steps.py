"""Descriptions of how programs are constructed, for explanations."""

from __future__ import annotations

#: Description of construction by enumeration, per structure.
ENUMERATED = {
    "tiled": "Micro-kernels are enumerated and compared first, each as one task; the most promising get tasks, pieces "
    "of the reduction and packing, and the model's price chooses.",
    "rows": "Vectors of a row and rows of a task are enumerated; the model's price chooses.",
    "streaming": "Vectors and tasks are enumerated; the model's price chooses.",
}
