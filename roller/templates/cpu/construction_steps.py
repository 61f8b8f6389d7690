"""How construction comes to programs, in words, for whoever explains one."""

from __future__ import annotations

#: What construction does where it grows nothing, by structure.
ENUMERATED = {
    "tiled": "Micro-kernels are enumerated and compared first, each as one task; the most promising get tasks, pieces "
    "of the reduction and packing, and the model's price chooses.",
    "rows": "Vectors of a row and rows of a task are enumerated; the model's price chooses.",
    "streaming": "Vectors and tasks are enumerated; the model's price chooses.",
}
