"""Operators of other libraries whose result's size depends on values, e.g. boxes that are kept of many."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._pytree import tree_map_only

from roller.insight.trace.pytorch.host_tensors import tensors_of


def is_dynamic(error: Exception) -> bool:
    """Whether an operator refuses tensors of shapes alone since its result's shape depends on values."""
    return isinstance(error, RuntimeError) and "data-dependent shape" in str(error)


def largest(func: Any, args: Any, kwargs: Any) -> tuple[Any, int]:
    """Return what an operator gives at most, one row for each of its first argument's, and how many these are."""
    rows = next((t.shape[0] for t in tensors_of((*args, *kwargs.values())) if t.dim()), 1)
    mode = FakeTensorMode(shape_env=ShapeEnv())

    def fake(tensor: torch.Tensor) -> torch.Tensor:
        with mode:
            return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")

    given = tree_map_only(torch.Tensor, fake, (tuple(args), dict(kwargs)))
    with mode:
        made = func(*given[0], **given[1])
    return tree_map_only(torch.Tensor, lambda t: torch.empty(_sizes(t, rows), dtype=t.dtype, device="meta"), made), rows


def _sizes(tensor: torch.Tensor, rows: int) -> list[int]:
    return [rows if isinstance(size, torch.SymInt) and size.node.maybe_as_int() is None else int(size)
            for size in tensor.shape]  # fmt: skip
