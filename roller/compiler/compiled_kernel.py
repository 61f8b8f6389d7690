"""CompiledKernel: what ``compile`` and ``load`` return, callable where its device is at hand."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from roller.artifact import Constant, KernelArtifact
from roller.core.display import html_table, one_line, seconds_text
from roller.errors import LaunchError, RollerError
from roller.targets import target_of_language
from roller.tile import RProgram

if TYPE_CHECKING:  # the model and the constructor are loaded by whoever looks at a candidate
    import os
    from pathlib import Path

    from roller.construction.constructor import Candidate
    from roller.construction.explicit_tiles import Tile
    from roller.explanation.explanation import Explanation
    from roller.explanation.why_not import WhyNot
    from roller.hardware import DeviceSpec
    from roller.perf.estimate import Estimate
    from roller.templates.common.options import ConstructOptions

Kernel = TypeVar("Kernel", bound="CompiledKernel")


class CompiledKernel:
    """The chosen kernel, and every candidate it was chosen from.

    Parameters
    ----------
    artifact
        The kernel: sources, launches, program, estimate, the expression it computes.
    candidates
        All candidates with their status, best first, or a function that returns them when they are first looked
        at; empty for a loaded artifact.
    reachable
        Whether the device the kernel was compiled for is at hand.
    launcher
        Makes what runs an artifact; found by the artifact's language when ``None``.
    cached_at
        Seconds since the epoch when it was put into the cache; ``None`` for one that is not from there.
    """

    def __init__(
        self,
        artifact: KernelArtifact,
        candidates: tuple[Candidate, ...] | Callable[[], tuple[Candidate, ...]] = (),
        reachable: bool = True,
        launcher: Callable[[KernelArtifact], Any] | None = None,
        cached_at: float | None = None,
    ) -> None:
        self.artifact = artifact
        self._candidates = candidates
        self._reachable = reachable
        self._make = launcher
        self.cached_at = cached_at
        self._launcher: Any = None
        self._lock = threading.Lock()

    def __copy__(self: Kernel) -> Kernel:
        """Return the kernel itself: nobody changes it, and several threads may call it."""
        return self

    def __deepcopy__(self: Kernel, memo: Any) -> Kernel:
        """Return the kernel itself, as :meth:`__copy__` does."""
        return self

    def __reduce__(self) -> Any:
        """Pickle the artifact, and the candidates that are there; what runs it is made anew where it is called.

        Raises
        ------
        RollerError
            The kernel is bound to a device (``"cuda:1"``), or takes a range of sizes.
        """
        if self._make is not None or type(self) is not CompiledKernel:
            bound = "a range of sizes" if self._make is None else "a device of this process"
            raise RollerError(
                f"{self.artifact.expression.name}: expected a kernel of one size and no device to pickle, got one that "
                f"is bound to {bound}. Compile it where it is needed: the cache has its code."
            )
        there = self._candidates if isinstance(self._candidates, tuple) else ()
        return CompiledKernel, (self.artifact, there, self._reachable, None, self.cached_at)

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """All candidates with their status, best first."""
        if callable(self._candidates):
            self._candidates = self._candidates()
        return self._candidates

    @property
    def program(self) -> RProgram:
        """The rProgram of the chosen kernel."""
        return self.artifact.program

    @property
    def estimate(self) -> Estimate:
        """The prediction the program was chosen by."""
        from roller.perf.estimate import Estimate

        return Estimate.from_dict(self.artifact.estimate)

    @property
    def source(self) -> str:
        """Sources of all launches: CUDA C, HIP C++, or TensorIR of a CPU kernel."""
        return self.artifact.source

    @property
    def measured_s(self) -> float | None:
        """Median measured seconds per call, where it was timed."""
        return self.artifact.measured_s

    @property
    def doubt(self) -> str:
        """Why the measured time, and the choice, may be wrong; empty where nothing disturbed the timing."""
        return self.artifact.doubt

    @property
    def ranking_refused(self) -> str:
        """Why the order of the candidates' times tells nothing: they are doubtful, or too close for a busy machine."""
        return self.artifact.doubt or self.artifact.tied

    def holding(self, constants: tuple[Constant, ...]) -> CompiledKernel:
        """Return the kernel with the values of its constant inputs; one kernel serves any."""
        if not constants:
            return self
        held = replace(self.artifact, constants=constants)
        return CompiledKernel(held, self._candidates, self._reachable, self._make, self.cached_at)

    def explain(self, device: str | DeviceSpec | None = None, options: ConstructOptions | None = None) -> Explanation:
        """Return how the kernel's program was constructed, what its time is made of, and what would lift it.

        Parameters
        ----------
        device
            The specification to explain it by: a name, a path or a DeviceSpec; by default that of the name the kernel
            was compiled for.
        options
            Those of its construction, where they were not the default ones.

        Raises
        ------
        SpecError
            Where no specification has the name the kernel was compiled for.
        TileError
            Where the program does not fit the device.
        """
        from roller.explanation.kernels import explain_kernel

        return explain_kernel(self, device, options)

    def why_not(
        self,
        tiles: Mapping[str, Tile] | str | RProgram,
        *,
        device: str | DeviceSpec | None = None,
        fragment: str | None = None,
        stages: int = 1,
        split_k: int = 1,
        raster: int = 1,
    ) -> WhyNot:
        """Return what speaks against tiles, or a program, beside that of the kernel.

        The capacity it exceeds, or the term by which it is slower, in numbers.

        Parameters
        ----------
        tiles, fragment, stages, split_k, raster
            As for :func:`roller.predict`: extents by layer, or the name of a program as ``construct`` prints it.
        device
            As for :meth:`explain`.
        """
        from roller.explanation.kernels import why_not_for_kernel

        return why_not_for_kernel(self, tiles, device, fragment, (stages, split_k, raster))

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the kernel, and the values of its constants, for :func:`roller.load`.

        Raises
        ------
        ArtifactError
            Where the path cannot be written.
        """
        return self.artifact.save(path)

    def __call__(self, *arrays: Any, out: Any = None, **options: Any) -> Any:
        """Run the kernel.

        Parameters
        ----------
        *arrays
            One array per input that is not constant, in call order: NumPy or anything with DLPack, shapes and dtypes
            as declared. On a GPU CuPy and torch arrays are taken as they are, and the work goes to their current
            stream.
        out
            Array (or a tuple of them) to write into; allocated where absent.
        **options
            What the backend's launcher knows besides: ``stream`` on a GPU.

        Returns
        -------
        The output array, or a tuple of them.

        Raises
        ------
        LaunchError
            Where the device is not at hand, or an array does not fit.
        BuildError
            Where a loaded GPU kernel was saved as source only, and its toolchain is missing or refuses it.
        """
        launcher = self._launcher
        if launcher is None:  # the lock of the property is for whoever loads first
            launcher = self.launcher
        return launcher(*arrays, out=out, **options)

    @property
    def launcher(self) -> Any:
        """The backend's launcher, loaded on first use."""
        with self._lock:
            if self._launcher is None:
                self._launcher = self._load()
            return self._launcher

    def _load(self) -> Any:
        if self._make is not None:
            return self._make(self.artifact)
        self.expect_reachable()
        return loaded(self.artifact)

    def expect_reachable(self) -> None:
        """Refuse to run where the device is not at hand.

        Raises
        ------
        LaunchError
            Where it is not.
        """
        artifact = self.artifact
        if not self._reachable:
            raise LaunchError(
                f"{artifact.expression.name}: the kernel was compiled for '{artifact.device}', which is not this "
                f"machine's device. Save it (kernel.save) and load it where a {artifact.device} is, or "
                "compile with device='cpu' to run here. Source, program and estimate are available everywhere."
            )

    def __repr__(self) -> str:
        """Operator, device, prediction and measurement on one line."""
        a = self.artifact
        doubtful = " (doubtful)" if a.doubt else ""
        measured = "" if a.measured_s is None else f"measured {seconds_text(a.measured_s)}{doubtful}"
        return one_line("CompiledKernel", f"{a.expression.name} on {a.device}: {self.estimate}", measured)

    def _repr_html_(self) -> str:
        """Candidates, best first, for a notebook."""
        rows = (
            (n, seconds_text(c.estimate.seconds), seconds_text(c.measured_s), c.status, str(c.program))
            for n, c in enumerate(self.candidates, 1)
        )
        title = f"{self.artifact.expression} on {self.artifact.device}"
        return html_table(title, ("#", "predicted", "measured", "status", "program"), rows)


def loaded(artifact: KernelArtifact) -> Any:
    """Return what runs a kernel on its device."""
    target = target_of_language(artifact.language, artifact.expression.name, LaunchError)
    # One compiled by name where its device was not has its source only, which is built where the device is.
    return target.load(artifact if artifact.binary is not None else target.build(artifact))
