"""Cache for the results of operators on meta tensors, keyed by the layouts of the operators' arguments.

Many of PyTorch's meta kernels are written in Python and take most of a trace's time, while a step calls the same
operators on the same shapes layer after layer. A result is cached only if it follows from layouts, as it does for ATen
operators on strided meta tensors whose results are new tensors or written arguments.
"""

from __future__ import annotations

from collections.abc import Hashable
from enum import Enum
from typing import Any

import torch

_PLAIN = (torch.Tensor, torch.nn.Parameter)
#: Types of the arguments whose value and type are part of a key: 2 and 2.0 promote to different dtypes.
_VALUES = (bool, int, float, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)
_UNFIT = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape, torch.Tag.inplace_view}


class _NoKeyError(Exception):
    """A call has an argument that cannot be part of a key."""


class MetaResultCache:
    """Runs operators on meta tensors; if an operator has run on the same layouts, returns its cached result.

    Examples
    --------
    >>> results = MetaResultCache()
    >>> x = torch.empty(2, 3, device="meta")
    >>> for _ in range(2):
    ...     made = results.run(torch.ops.aten.sum.dim_IntList, (x, [0]), {})
    >>> made.shape, results.known
    (torch.Size([3]), 1)
    """

    def __init__(self) -> None:
        self._results: dict[Hashable, Any] = {}
        self._kinds: dict[Any, _Cacheability] = {}

    @property
    def known(self) -> int:
        """Number of cached results."""
        return len(self._results)

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Return ``func(*args, **kwargs)``, from the cache if possible."""
        kind = self._kinds.get(func)
        if kind is None:
            kind = self._kinds[func] = _classify_operator(func)
        # Another active mode has to see the operator's calls.
        if kind is _Cacheability.UNFIT or torch._C._len_torch_dispatch_stack():
            return func(*args, **kwargs)
        tensors: list[torch.Tensor] = []
        try:
            key = _call_key(args, kwargs, tensors, kind)
        except _NoKeyError:
            return func(*args, **kwargs)
        made = self._results.get((func, key))
        if made is not None:
            return _result_from_recipe(made, tensors)
        result = func(*args, **kwargs)
        recipe = _result_recipe(result, tensors, kind)
        if recipe is None or key != _call_key(args, kwargs, [], kind):  # the call changed the layout of an argument
            self._kinds[func] = _Cacheability.UNFIT
        else:
            self._results[func, key] = recipe
        return result


class _Cacheability(Enum):
    UNFIT, READS, WRITES = range(3)


def _classify_operator(func: Any) -> _Cacheability:
    if func.namespace != "aten" or _UNFIT & set(func.tags):
        return _Cacheability.UNFIT
    return _Cacheability.WRITES if func._schema.is_mutable else _Cacheability.READS


def _call_key(args: Any, kwargs: Any, tensors: list[torch.Tensor], kind: _Cacheability) -> Hashable:
    named = [(name, _argument_key(value, tensors)) for name, value in kwargs.items()]
    key = (torch.get_default_dtype(), _argument_key(args, tensors), *named)  # integers promote to the default dtype
    if kind is _Cacheability.READS:
        return key
    # For an operator that writes it matters which arguments are the same tensor; PyTorch may refuse overlaps.
    numbers: dict[int, int] = {}
    same = tuple(numbers.setdefault(id(tensor), n) for n, tensor in enumerate(tensors))
    if len({tensors[n].untyped_storage()._cdata for n in numbers.values()}) != len(numbers):
        raise _NoKeyError
    return (key, same)


def _argument_key(value: Any, tensors: list[torch.Tensor]) -> Hashable:
    """Return an argument's part of a key; append its tensors to ``tensors``."""
    if isinstance(value, torch.Tensor):
        if (
            type(value) not in _PLAIN or not value.is_meta or value.layout is not torch.strided
            or not value.dim()  # may be a wrapped number, which promotes dtypes differently
            or value.dtype.is_complex or value._is_zerotensor() or value.is_neg()
        ):  # fmt: skip
            raise _NoKeyError
        tensors.append(value)
        return (value.shape, value.stride(), value.storage_offset(), value.dtype)
    if isinstance(value, (list, tuple)):
        return (type(value), *[_argument_key(one, tensors) for one in value])
    if not isinstance(value, _VALUES):
        raise _NoKeyError
    return (type(value), value)


def _result_recipe(result: Any, tensors: list[torch.Tensor], kind: _Cacheability) -> Any:
    """Return a recipe from which :func:`_result_from_recipe` recreates an equal result; ``None`` if there is none."""
    if result is None:
        return (None,)
    if isinstance(result, torch.Tensor):
        return _tensor_recipe(result, tensors, kind, set())
    if type(result) not in (list, tuple):
        return None
    storages: set[int] = set()
    parts = []
    for one in result:
        part = (None,) if one is None else None
        if isinstance(one, torch.Tensor):
            part = _tensor_recipe(one, tensors, kind, storages)
        if part is None:
            return None
        parts.append(part)
    return (type(result), parts)


def _tensor_recipe(made: torch.Tensor, tensors: list[torch.Tensor], kind: _Cacheability, storages: set[int]) -> Any:
    for number, tensor in enumerate(tensors if kind is _Cacheability.WRITES else ()):
        if made is tensor:
            return (number,)
    if (
        type(made) is not torch.Tensor or not made.is_meta or made.layout is not torch.strided
        or made.storage_offset() or made.dtype.is_complex or made._is_zerotensor() or made.is_neg()
    ):  # fmt: skip
        return None
    storage = made.untyped_storage()
    if storage._cdata in storages or any(storage._cdata == tensor.untyped_storage()._cdata for tensor in tensors):
        return None
    storages.add(storage._cdata)
    again = torch.empty_strided(made.shape, made.stride(), dtype=made.dtype, device="meta")
    if again.untyped_storage().nbytes() != storage.nbytes():
        return None
    return (made.shape, made.stride(), made.dtype)


def _result_from_recipe(recipe: Any, tensors: list[torch.Tensor]) -> Any:
    if len(recipe) == 1:
        return None if recipe[0] is None else tensors[recipe[0]]
    if len(recipe) == 3:
        return torch.empty_strided(recipe[0], recipe[1], dtype=recipe[2], device="meta")
    return recipe[0](_result_from_recipe(part, tensors) for part in recipe[1])
