"""Makes a traced script's data loaders run in its process with the requested batch size, and counts their batches."""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch.utils import data
from torch.utils.data import dataloader

from roller.insight.trace.pytorch.compat import without_modes, without_torch_function
from roller.insight.trace.pytorch.transform_step_inputs import iterate_tensors

#: Arguments with which a loader runs without worker processes.
_ALONE = {
    "num_workers": 0, "pin_memory": False, "persistent_workers": False, "prefetch_factor": None, "timeout": 0,
    "multiprocessing_context": None,
}  # fmt: skip


class FetchedBatches:
    """Batches that a script has fetched from its loaders.

    Parameters
    ----------
    batch
        Samples per batch; ``None`` for the script's own batch size.
    before
        Called before a batch is fetched.
    """

    def __init__(self, batch: int | None, before: Callable[[], None]) -> None:
        self.batch, self._before = batch, before
        #: Maps the identity of each loader's sampler to the sampler, which is kept alive, and to the number of samples
        #: in each batch that the loader has provided.
        self._sizes: dict[int, tuple[Any, list[int]]] = {}
        self._latest = 0
        self._drawn: int | None = None

    @property
    def count(self) -> int:
        """Number of batches from the loader that provided the latest one."""
        return len(self.sizes)

    @property
    def sizes(self) -> list[int]:
        """Number of samples in each batch from the loader that provided the latest one; 0 if unknown."""
        return self._sizes[self._latest][1] if self._sizes else []

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Adapt the loaders that a script makes, and count their batches, within this context."""
        with ExitStack() as stack:
            for home, name, value in (
                (data.DataLoader, "__init__", _wrap_init_without_workers(data.DataLoader.__init__)),
                (data.DataLoader, "__iter__", _wrap_iter_without_workers(data.DataLoader.__iter__)),
                (data.DataLoader, "_index_sampler", property(self._wrap_index_sampler(data.DataLoader._index_sampler))),
                (dataloader._BaseDataLoaderIter, "_next_index", self._wrap_next_index(dataloader._BaseDataLoaderIter)),
                (dataloader._BaseDataLoaderIter, "__next__", self._wrap_next_batch(dataloader._BaseDataLoaderIter)),
                (torch, "randperm", _wrap_randperm_on_host(torch.randperm)),
            ):
                stack.enter_context(patch.object(home, name, value))
            yield

    def _wrap_index_sampler(self, own: Any) -> Callable[[Any], Any]:
        def index_sampler(loader: Any) -> Any:
            sampler = own.fget(loader)
            if self.batch is None or not loader._auto_collation:
                return sampler
            return _ResizedBatchSampler(sampler, self.batch)

        return index_sampler

    def _wrap_next_index(self, home: Any) -> Callable[[Any], Any]:
        own = home._next_index

        @functools.wraps(own)
        def next_index(iterator: Any) -> Any:
            with without_modes(), without_torch_function():  # its permutation must have real values
                found = own(iterator)
            self._drawn = len(found) if isinstance(found, (list, tuple)) else None
            return found

        return next_index

    def _wrap_next_batch(self, home: Any) -> Callable[[Any], Any]:
        own = home.__next__

        @functools.wraps(own)
        def fetch(iterator: Any) -> Any:
            self._before()
            found = own(iterator)
            sampler = getattr(iterator._index_sampler, "sampler_within", iterator._index_sampler)
            self._latest = id(sampler)
            lengths = (int(tensor.shape[0]) for tensor in iterate_tensors(found) if tensor.dim())
            self._sizes.setdefault(self._latest, (sampler, []))[1].append(self._drawn or next(lengths, 0))
            return found

        return fetch


class _ResizedBatchSampler:
    """Yields lists of a given number of indices from another batch sampler, which is restarted when it ends."""

    def __init__(self, sampler: Any, batch: int) -> None:
        self.sampler_within, self._batch = sampler, batch

    def __iter__(self) -> Iterator[list[Any]]:
        indices = self._endless_sample_indices()
        for _ in range(len(self)):
            found = list(itertools.islice(indices, self._batch))
            if found:
                yield found

    def _endless_sample_indices(self) -> Iterator[Any]:
        while True:
            count = 0
            for one in self.sampler_within:
                count += 1
                yield from one
            if not count:
                return

    def __len__(self) -> int:
        return len(self.sampler_within)


def _wrap_iter_without_workers(own: Any) -> Callable[[Any], Any]:
    @functools.wraps(own)
    def iterate_without_workers(loader: Any) -> Any:
        if loader.num_workers:  # made before the trace began
            for name, value in _ALONE.items():
                if name != "multiprocessing_context":
                    object.__setattr__(loader, name, value)
        return own(loader)

    return iterate_without_workers


def _wrap_init_without_workers(own: Any) -> Callable[..., None]:
    signature = inspect.signature(own)

    @functools.wraps(own)  # Lightning reads its signature
    def init_without_workers(loader: Any, *args: Any, **kwargs: Any) -> None:
        bound = signature.bind(loader, *args, **kwargs)
        bound.arguments.update({name: value for name, value in _ALONE.items() if name in signature.parameters})
        own(*bound.args, **bound.kwargs)

    return init_without_workers


def _wrap_randperm_on_host(own: Any) -> Callable[..., Any]:
    """Return a ``randperm`` that computes on the host at any size, since its numbers are indices of samples."""

    @functools.wraps(own)
    def randperm(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("device") is not None:
            return own(*args, **kwargs)
        with without_modes(), without_torch_function():
            return own(*args, **kwargs)

    return randperm
