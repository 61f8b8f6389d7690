"""The first call of a compiled graph beside PyTorch: where results differ, the graph is PyTorch's from then on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from roller.onnx.torch_judge import difference

if TYPE_CHECKING:
    import torch

    from roller.model.session import Session
    from roller.onnx.torch_call import GraphCall

Graph = Callable[..., Any]


class FirstCall:
    """A graph whose first call is compared with PyTorch.

    Ours runs first, then PyTorch on the caller's own arguments, so that whatever PyTorch writes, draws at random or
    raises is written, drawn and raised as without a compiler.

    Parameters
    ----------
    graph
        In PyTorch.
    call
        Compiled.
    pointwise
        As of :func:`roller.onnx.torch_judge.difference`.
    left
        Takes what differs and the arguments; returns the graph in PyTorch, with a warning.
    """

    def __init__(
        self, graph: torch.fx.GraphModule, call: GraphCall, pointwise: bool, left: Callable[[str, Sequence[Any]], Graph]
    ) -> None:
        self._graph, self._call, self._pointwise, self._left = graph, call, pointwise, left
        self._lock = threading.RLock()
        self._run: Graph | None = None

    def __call__(self, *arguments: Any) -> Any:
        """Run the graph."""
        run = self._run
        return self._first(arguments) if run is None else run(*arguments)

    @property
    def session(self) -> Session:
        """What was compiled."""
        return self._call.session

    @property
    def differs(self) -> bool:
        """Whether PyTorch runs the graph, since results differed."""
        return self._run not in (None, self._call)

    def _first(self, arguments: Sequence[Any]) -> Any:
        with self._lock:
            if self._run is not None:  # another thread was first
                return self._run(*arguments)
            found: Any = None
            failure: Exception | None = None
            try:
                found = self._call.alone(*arguments)
            except Exception as why:  # noqa: BLE001 - PyTorch may raise its own, which the caller shall see
                failure = why
            before = _written(self._graph, arguments)
            drawn = _random_state()
            expected = self._graph(*arguments)
            why_not = self._why_not(found, failure, expected, before, drawn, arguments)
            if why_not is not None:
                self._run = self._left(why_not, arguments)
                return expected
            found = self._call.like(found, expected)
            self._run = self._call
            return found

    def _why_not(
        self, found: Any, failure: Exception | None, expected: Any, before: Any, drawn: Any, arguments: Sequence[Any]
    ) -> str | None:
        import torch

        if failure is not None:
            return f"it raises {type(failure).__name__}: {str(failure).strip().partition(chr(10))[0]}"
        if not torch.equal(drawn, _random_state()):
            return "it draws random numbers, which kernels do not"
        if _changed(before, _written(self._graph, arguments)):
            return "it writes into its arguments or buffers, which kernels do not"
        return difference(found, expected, self._graph.forward, arguments, pointwise=self._pointwise)


def _random_state() -> torch.Tensor:
    import torch

    return torch.get_rng_state()


def _written(graph: torch.fx.GraphModule, arguments: Sequence[Any]) -> list[Any]:
    """Return what tells whether tensors have been written: their versions, copies where PyTorch counts none."""
    import torch

    tensors = [*(a for a in arguments if isinstance(a, torch.Tensor)), *graph.parameters(), *graph.buffers()]
    return [t.clone() if t.is_inference() else t._version for t in tensors]


def _changed(before: Sequence[Any], after: Sequence[Any]) -> bool:
    import torch

    def same(one: Any, other: Any) -> bool:
        if not isinstance(one, torch.Tensor):
            return bool(one == other)
        return torch.allclose(one, other, 0, 0, equal_nan=True)

    return not all(map(same, before, after))
