"""Graphs whose weights are packed in advance, once per set of weights and again whenever a weight has changed."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from roller.models.torch.call_compiled_graph import materialise
from roller_runtime.core.fork_safe_lock import ForkSafeLock

if TYPE_CHECKING:
    import torch

#: Returns a function that runs the graph with the given arrays as constant inputs, by position.
Pack = Callable[[Mapping[int, np.ndarray]], Callable[..., Any]]
#: Maximum number of times that a set of weights is packed; if it still changes, it is passed as arguments.
MOST_PACKS = 4

_version = attrgetter("_version")


@dataclass
class _PackedWeights:
    """A set of weights in packed form.

    Parameters
    ----------
    run
        The graph with these weights as constants.
    state
        Addresses and versions of the weights; ``None`` if ``run`` takes them as arguments.
    kept
        Views that keep the memory of weights allocated, so that no other tensor gets the same address.
    packs
        Number of times that this set was packed.
    """

    run: Callable[..., Any]
    state: tuple[list[int], list[int]] | None
    kept: tuple[torch.Tensor, ...] = field(repr=False, default=())
    packs: int = 1


class FrozenGraph:
    """A graph that packs each set of weights that calls pass.

    A set is identified by its tensors; its packed form is valid while all of them keep their addresses and versions,
    and is dropped once one of them is garbage-collected.

    Parameters
    ----------
    positions
        Positions of the weights among the arguments.
    pack
        See :data:`Pack`; called without weights if the weights have no versions or change from call to call.
    """

    def __init__(self, positions: Sequence[int], pack: Pack) -> None:
        self._positions, self._pack = tuple(positions), pack
        # A getter of one position returns no tuple, so a single position is repeated.
        self._weights = itemgetter(*positions) if len(positions) > 1 else itemgetter(*positions, *positions)
        self._sets: dict[tuple[int, ...], _PackedWeights] = {}
        self._plain: Callable[..., Any] | None = None
        # A weight may be collected, which removes its set, while this thread holds the lock.
        self._lock = ForkSafeLock()

    def __call__(self, *arguments: Any) -> Any:
        """Run the graph."""
        weights = self._weights(arguments)
        found = self._sets.get(tuple(map(id, weights)))
        if found is None or (found.state is not None and found.state != _addresses_and_versions(weights)):
            found = self._pack_weights(weights)
        return found.run(*arguments)

    @property
    def differs(self) -> bool:
        """Whether PyTorch runs the graph for a set of weights because results differed."""
        # Without the lock: its holder may wait for a lock that the caller of this property holds.
        return any(getattr(found.run, "differs", False) for found in list(self._sets.values()))

    def _pack_weights(self, weights: tuple[torch.Tensor, ...]) -> _PackedWeights:
        key = tuple(map(id, weights))
        with self._lock:
            found, state = self._sets.get(key), _addresses_and_versions(weights)
            if found is not None and found.state in (None, state):  # another thread was first
                return found
            packs = 1 if found is None else found.packs + 1
            if state is None or packs > MOST_PACKS:
                made = _PackedWeights(self._graph_with_weight_arguments(), None)
            else:
                # Weights are copied, because a constant that no kernel packs would otherwise be the weight itself.
                arrays = (np.array(materialise(w).numpy(), order="C") for w in weights)
                run = self._pack(dict(zip(self._positions, arrays, strict=False)))
                made = _PackedWeights(run, state, tuple(w.detach() for w in weights), packs)
            self._sets[key] = made
            if found is None:
                for weight in weights:
                    weakref.finalize(weight, self._sets.pop, key, None).atexit = False
            return made

    def _graph_with_weight_arguments(self) -> Callable[..., Any]:
        if self._plain is None:
            self._plain = self._pack({})
        return self._plain


def _addresses_and_versions(weights: Sequence[torch.Tensor]) -> tuple[list[int], list[int]] | None:
    """Return the addresses and versions of weights; ``None`` if PyTorch counts no versions."""
    try:
        return [w.data_ptr() for w in weights], list(map(_version, weights))
    except RuntimeError:  # tensors of inference mode have no version
        return None
