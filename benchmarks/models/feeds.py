"""Inputs for a model, from nothing but its file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx


def random_feeds(
    path: Path, seed: int = 1, shapes: Mapping[str, Sequence[int | None] | None] | None = None
) -> dict[str, np.ndarray]:
    """Return one array per input of the model: normal numbers, and integers in the range that the file states.

    Parameters
    ----------
    path
        Of the ``.onnx`` file; its weights are not read.
    seed
        Of all arrays.
    shapes
        By input, instead of those of the file.
    """
    model = onnx.load(str(path), load_external_data=False)
    below = {p.key: int(p.value) for p in model.metadata_props if p.key.startswith("below:")}
    held = {t.name for t in model.graph.initializer}
    random = np.random.default_rng(seed)
    feeds = {}
    for value in model.graph.input:
        if value.name in held:
            continue
        kind = value.type.tensor_type
        shape = tuple((shapes or {}).get(value.name) or (d.dim_value for d in kind.shape.dim))
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
        limit = below.get(f"below:{value.name}")
        if limit is None:
            feeds[value.name] = random.standard_normal(shape).astype(dtype)
        else:
            feeds[value.name] = random.integers(0, limit, shape).astype(dtype)
    return feeds
