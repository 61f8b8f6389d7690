"""Descriptions of how construction finds programs, for explanations."""

from __future__ import annotations

#: Description of construction, by structure, for structures whose tiles do not grow.
ENUMERATED = {
    "rows": "Threads along a row, threads along rows, and what each holds are enumerated; the model's price chooses "
    "among all that fit.",
    "streaming": "Without reuse there is nothing to grow for: threads and vectors per thread are enumerated; the "
    "model's price chooses.",
    "window": "Strips of outputs and blocks of them are enumerated; the model's price chooses.",
}
