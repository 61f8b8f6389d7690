"""Operators from other libraries with data-dependent output size, e.g. non-maximum suppression of boxes."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._pytree import tree_map_only

from roller.insight.trace.pytorch.host_tensors import iterate_tensors


def is_data_dependent_error(error: Exception) -> bool:
    """Return whether an error says that an operator's output shape is data-dependent."""
    return isinstance(error, RuntimeError) and "data-dependent shape" in str(error)


def largest_possible_result(func: Any, args: Any, kwargs: Any) -> tuple[Any, int]:
    """Return an operator's largest possible result, with as many rows as its first tensor, and the number of rows."""
    rows = next((t.shape[0] for t in iterate_tensors((*args, *kwargs.values())) if t.dim()), 1)
    mode = FakeTensorMode(shape_env=ShapeEnv())

    def to_fake_tensor(tensor: torch.Tensor) -> torch.Tensor:
        with mode:
            return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")

    given = tree_map_only(torch.Tensor, to_fake_tensor, (tuple(args), dict(kwargs)))
    with mode:
        made = func(*given[0], **given[1])
    return tree_map_only(
        torch.Tensor, lambda t: torch.empty(_shape_with_most_rows(t, rows), dtype=t.dtype, device="meta"), made
    ), rows


def _shape_with_most_rows(tensor: torch.Tensor, rows: int) -> list[int]:
    return [rows if isinstance(size, torch.SymInt) and size.node.maybe_as_int() is None else int(size)
            for size in tensor.shape]  # fmt: skip
