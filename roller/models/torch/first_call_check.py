"""Compares a compiled graph's first call with PyTorch; if results differ, PyTorch runs all later calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from roller.models.torch.result_difference import describe_difference
from roller_runtime.core.fork_safe_lock import ForkSafeLock

if TYPE_CHECKING:
    import torch

    from roller.models.torch.call_compiled_graph import GraphCall
    from roller_runtime.session.cpu_session import Session

Graph = Callable[..., Any]


class CheckedFirstCall:
    """A graph whose first call is compared with PyTorch.

    Parameters
    ----------
    graph, call
        The graph in PyTorch, and its compiled form.
    pointwise, random
        See :func:`roller.models.torch.result_difference.describe_difference`.
    left
        Function that takes the reason for leaving the graph to PyTorch and the arguments (``None`` to skip the search
        for the differing operator). It warns and returns the graph in PyTorch.
    agreed
        Function that is called after the first call if its results agree.
    """

    def __init__(
        self,
        graph: torch.fx.GraphModule,
        call: GraphCall,
        pointwise: bool,
        left: Callable[[str, Sequence[Any] | None], Graph],
        *,
        random: bool = False,
        agreed: Callable[[], None] | None = None,
    ) -> None:
        self._graph, self._call, self._pointwise, self._left = graph, call, pointwise, left
        self._random, self._agreed = random, agreed
        self._lock = ForkSafeLock()
        self._run: Graph | None = None

    def __call__(self, *arguments: Any) -> Any:
        """Run the graph."""
        run = self._run
        return self._run_first_call(arguments) if run is None else run(*arguments)

    @property
    def session(self) -> Session:
        """The compiled session."""
        return self._call.session

    @property
    def differs(self) -> bool:
        """Whether PyTorch runs the graph because results differed."""
        return self._run not in (None, self._call)

    def _run_first_call(self, arguments: Sequence[Any]) -> Any:
        with self._lock:
            if self._run is not None:  # another thread was first
                return self._run(*arguments)
            # The compiled graph runs first, then PyTorch on the caller's own arguments, so that PyTorch's writes,
            # random numbers and errors are those of a program without a compiler.
            found: Any = None
            failure: Exception | None = None
            try:
                found = self._call.run_compiled(*arguments)
            except Exception as why:  # noqa: BLE001 - PyTorch may raise its own error, which the caller should get
                failure = why
            unwritten: _SideEffectDetector | None = None
            try:
                unwritten = _SideEffectDetector(self._graph, arguments, self._random)
            except Exception as why:  # noqa: BLE001 - as above
                failure = failure or why
            expected = self._graph(*arguments)
            searched: Sequence[Any] | None = arguments
            try:
                why_not = self._reason_for_eager(found, failure, expected, unwritten, arguments)
                if why_not is None:
                    found = self._call.match_strides(found, expected)
            except Exception as why:  # noqa: BLE001 - an internal error must not lose PyTorch's result
                why_not, searched = f"its first call could not be compared ({type(why).__name__})", None
            if why_not is not None:
                self._run = self._left(why_not, searched)
                return expected
            self._run = self._call
            if self._agreed is not None:
                self._agreed()
            return found

    def _reason_for_eager(
        self,
        found: Any,
        failure: Exception | None,
        expected: Any,
        unwritten: _SideEffectDetector | None,
        arguments: Sequence[Any],
    ) -> str | None:
        if failure is not None or unwritten is None:
            return f"its first call raises {type(failure).__name__}: {str(failure).strip().partition(chr(10))[0]}"
        if unwritten.drew_random_numbers():
            return "its first call draws random numbers, which kernels do not"
        if unwritten.wrote_tensors():
            return "its first call writes into its arguments or buffers, which kernels do not"
        unlike = describe_difference(
            found, expected, self._graph.forward, arguments, pointwise=self._pointwise, random=self._random
        )
        return unlike and f"results of its first call differ from PyTorch's: {unlike}"


class _SideEffectDetector:
    """Detects a call's writes by tensor versions (copies if PyTorch counts none) and its draws by the random state."""

    def __init__(self, graph: torch.fx.GraphModule, arguments: Sequence[Any], random: bool) -> None:
        import torch

        self._state = torch.get_rng_state() if random else None
        self._tensors = [
            *(a for a in arguments if isinstance(a, torch.Tensor)), *graph.parameters(), *graph.buffers()
        ]  # fmt: skip
        self._before = [t.clone() if t.is_inference() else t._version for t in self._tensors]

    def drew_random_numbers(self) -> bool:
        import torch

        return self._state is not None and not torch.equal(self._state, torch.get_rng_state())

    def wrote_tensors(self) -> bool:
        import torch

        def same(before: torch.Tensor | int, now: torch.Tensor) -> bool:
            if not isinstance(before, torch.Tensor):
                return bool(before == now._version)
            return before.shape == now.shape and bool(torch.allclose(before, now, 0, 0, equal_nan=True))

        return not all(map(same, self._before, self._tensors))
