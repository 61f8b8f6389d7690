"""Weights packed ahead, where the caller asks for it: once for every set of them, and anew when one has changed."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from roller.models.torch.call import in_memory

if TYPE_CHECKING:
    import torch

#: Makes what runs a graph whose inputs at these positions are these arrays.
Pack = Callable[[Mapping[int, np.ndarray]], Callable[..., Any]]
#: A set of weights is packed so often; one that still changes is an argument like others from then on.
MOST_PACKS = 4

_version = attrgetter("_version")


@dataclass
class _Set:
    """Weights as they were when they were packed.

    Parameters
    ----------
    run
        The graph with these weights inside.
    state
        Address and version of each; ``None`` where ``run`` takes them as arguments.
    kept
        Views that keep their memory from being given to others: an address would say nothing then.
    packs
        How often this set was packed.
    """

    run: Callable[..., Any]
    state: tuple[list[int], list[int]] | None
    kept: tuple[torch.Tensor, ...] = field(repr=False, default=())
    packs: int = 1


class FrozenGraph:
    """A graph with its weights packed, for every set of weights that it is called with.

    Dynamo calls one graph with the weights of several modules. A set is known by its tensors, and its packed form is
    used as long as every one has the memory and the version it had; it is forgotten with the first tensor that dies.

    Parameters
    ----------
    positions
        Of the weights among the arguments.
    pack
        See :data:`Pack`; with no weights for those that PyTorch keeps no version of, or that change from call to call.
    """

    def __init__(self, positions: Sequence[int], pack: Pack) -> None:
        self._positions, self._pack = tuple(positions), pack
        # A getter of one position gives no tuple: then the same one twice.
        self._weights = itemgetter(*positions) if len(positions) > 1 else itemgetter(*positions, *positions)
        self._sets: dict[tuple[int, ...], _Set] = {}
        self._plain: Callable[..., Any] | None = None
        # A weight may die, and its set with it, while this thread holds the lock.
        self._lock = threading.RLock()

    def __call__(self, *arguments: Any) -> Any:
        """Run the graph."""
        weights = self._weights(arguments)
        found = self._sets.get(tuple(map(id, weights)))
        if found is None or (found.state is not None and found.state != _state(weights)):
            found = self._packed(weights)
        return found.run(*arguments)

    @property
    def differs(self) -> bool:
        """Whether PyTorch runs the graph for a set of weights, since results differed."""
        # Without the lock: who holds it may wait for the one that whoever asks holds.
        return any(getattr(found.run, "differs", False) for found in list(self._sets.values()))

    def _packed(self, weights: tuple[torch.Tensor, ...]) -> _Set:
        key = tuple(map(id, weights))
        with self._lock:
            found, state = self._sets.get(key), _state(weights)
            if found is not None and found.state in (None, state):  # another thread was first
                return found
            packs = 1 if found is None else found.packs + 1
            if state is None or packs > MOST_PACKS:
                made = _Set(self._unpacked(), None)
            else:
                # Copies: a constant that no kernel packs would else be the weight itself.
                arrays = (np.array(in_memory(w).numpy(), order="C") for w in weights)
                run = self._pack(dict(zip(self._positions, arrays, strict=False)))
                made = _Set(run, state, tuple(w.detach() for w in weights), packs)
            self._sets[key] = made
            if found is None:
                for weight in weights:
                    weakref.finalize(weight, self._sets.pop, key, None).atexit = False
            return made

    def _unpacked(self) -> Callable[..., Any]:
        if self._plain is None:
            self._plain = self._pack({})
        return self._plain


def _state(weights: Sequence[torch.Tensor]) -> tuple[list[int], list[int]] | None:
    """Return where weights lie and how often PyTorch has seen them written; ``None`` where it does not count that."""
    try:
        return [w.data_ptr() for w in weights], list(map(_version, weights))
    except RuntimeError:  # of inference mode
        return None
