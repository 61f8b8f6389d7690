"""Traces a step under other options and caches the latest traces."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

from roller.errors import ModelError, shown
from roller.insight.trace.options import HOST, PRECISIONS, TraceOptions, compute_capability_of
from roller.insight.trace.torch_release import TorchRelease
from roller.insight.trace.trace import Trace

T = TypeVar("T")
#: Maximum number of traces in the cache; a trace of a large model has about ten thousand operators.
_KEPT = 16


class Retracer(Generic[T]):
    """Traces one step under other options; the latest traces are cached.

    Parameters
    ----------
    make
        Function that traces the step under complete options.
    first
        Options of the first trace, which are the defaults of later ones.
    wrap
        Function that makes the result from a trace and a retracer with that trace's options as defaults.
    """

    def __init__(
        self, make: Callable[[TraceOptions], Trace], first: TraceOptions, wrap: Callable[[Trace, Retracer[T]], T]
    ) -> None:
        self._make, self._first, self._wrap = make, first, wrap
        #: Maps options and the compute capabilities for which PyTorch chooses the same kernels to the trace.
        self._kept: OrderedDict[tuple[object, frozenset[tuple[int, int]]], T] = OrderedDict()

    def __call__(self, options: TraceOptions) -> T:
        """Return the trace under other options; devices for which PyTorch chooses the same kernels share a trace."""
        whole = self._complete_options(options)
        capability = compute_capability_of(whole.device)
        release = TorchRelease.parse(whole.torch_release)
        key = (whole.batch, PRECISIONS[whole.amp or "fp32"], str(whole.checkpoint or False), str(release))
        if capability == HOST and key[1] is not None:
            raise ModelError(
                f"trace: amp: expected fp32 on a CPU, got {shown(whole.amp)}: its rules of mixed precision are not "
                f"described. Leave it out, or name a GPU."
            )
        if capability == HOST and release != TorchRelease():
            raise ModelError(
                f"trace: torch_release: expected none on a CPU, got {shown(whole.torch_release)}: the rules of older "
                f"releases are those of GPUs. Leave it out, or name a GPU."
            )
        found = next((kept for known, kept in self._kept.items() if known[0] == key and capability in known[1]), None)
        if found is None:
            made = self._make(whole)
            found = self._wrap(made, self._with_defaults(whole))
            self._kept[key, frozenset([capability, *_equivalent_capabilities(made, capability)])] = found
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return found

    def _with_defaults(self, options: TraceOptions) -> Retracer[T]:
        """Return a retracer that shares the cache and has these options as the defaults."""
        again = Retracer(self._make, options, self._wrap)
        again._kept = self._kept
        return again

    def _complete_options(self, options: TraceOptions) -> TraceOptions:
        first = self._first
        return TraceOptions(
            first.batch if options.batch is None else options.batch,
            first.device if options.device is None else options.device,
            first.amp if options.amp is None else options.amp,
            first.checkpoint if options.checkpoint is None else options.checkpoint,
            first.torch_release if options.torch_release is None else options.torch_release,
        )


def _equivalent_capabilities(trace: Trace, capability: tuple[int, int]) -> list[tuple[int, int]]:
    """Return the compute capabilities for which PyTorch chooses a trace's kernels; GPUs never run a CPU's kernels."""
    if capability == HOST:
        return []
    return [(major, minor) for major, minor in trace.options.get("capabilities_alike", ())]
