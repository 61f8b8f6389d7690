"""CompiledKernel, the callable result of ``compile`` and ``load``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from roller.artifact import Constant, KernelArtifact
from roller.errors import ArtifactError, LaunchError, RollerError
from roller.targets import KINDS, target_of_language
from roller.tile import RProgram
from roller_runtime.core.display import html_table, one_line_repr, seconds_text
from roller_runtime.core.fork_safe_lock import ForkSafeLock
from roller_runtime.core.validation import validate_path as path_of
from roller_runtime.core.validation import validate_threads

if TYPE_CHECKING:  # the model and the constructor are loaded by whoever looks at a candidate
    import os
    from pathlib import Path

    from roller.compiler.dynamic.loaded_kernel import LoadedRangeKernel
    from roller.construction.constructor import Candidate
    from roller.construction.explicit_tiles import Tile
    from roller.explanation.explanation import Explanation
    from roller.explanation.why_not import WhyNot
    from roller.hardware import DeviceSpec
    from roller.perf.estimate import Estimate
    from roller.runtime.cache_entry import CachedCandidate
    from roller.templates.common.options import ConstructOptions

Kernel = TypeVar("Kernel", bound="CompiledKernel")


class CompiledKernel:
    """The selected kernel and all candidates.

    Parameters
    ----------
    artifact
        The kernel: sources, launches, program, estimate, expression.
    candidates
        All candidates with their status, best first, or a function that returns them on first access; empty for a
        loaded artifact.
    reachable
        Whether the kernel's device is present.
    launcher
        Function that makes an artifact callable; by default chosen by the artifact's language.
    cached_at
        Time when the kernel entered the cache, in seconds since the epoch; ``None`` if it does not come from there.
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
        self._lock = ForkSafeLock()

    def __copy__(self: Kernel) -> Kernel:
        return self

    def __deepcopy__(self: Kernel, memo: Any) -> Kernel:
        return self

    def __reduce__(self) -> Any:
        """Pickle the artifact and the known candidates; the launcher is recreated on the first call.

        Raises
        ------
        RollerError
            If the kernel is bound to a device (``"cuda:1"``) or takes a range of sizes.
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
        """The rProgram of the selected kernel."""
        return self.artifact.program

    @property
    def estimate(self) -> Estimate:
        """The prediction for the program."""
        from roller.perf.estimate import Estimate

        return Estimate.from_dict(self.artifact.estimate)

    @property
    def source(self) -> str:
        """Sources of all launches: CUDA C, HIP C++, or TensorIR for a CPU kernel."""
        return self.artifact.source

    @property
    def measured_s(self) -> float | None:
        """Median measured time per call, in seconds; ``None`` if the kernel was not timed."""
        return self.artifact.measured_s

    @property
    def doubt(self) -> str:
        """Reason why the measured time and the choice may be wrong; empty if the timing was undisturbed."""
        return self.artifact.doubt

    @property
    def ranking_refused(self) -> str:
        """Reason why the times give no ranking (doubtful, or too close for a busy machine); empty if they do."""
        return self.artifact.doubt or self.artifact.tied

    def holding(self, constants: tuple[Constant, ...]) -> CompiledKernel:
        """Return the kernel bound to the values of its constant inputs."""
        if not constants:
            return self
        held = replace(self.artifact, constants=constants)
        return CompiledKernel(held, self._candidates, self._reachable, self._make, self.cached_at)

    def explain(self, device: str | DeviceSpec | None = None, options: ConstructOptions | None = None) -> Explanation:
        """Return how the kernel's program was constructed, the parts of its predicted time, and what would improve it.

        Parameters
        ----------
        device
            The specification for the explanation: a name, a path or a DeviceSpec; by default the specification that the
            kernel was compiled for, found by its name.
        options
            The options for its construction, if they are not the defaults.

        Raises
        ------
        SpecError
            If no specification has the name that the kernel was compiled for.
        TileError
            If the program does not fit the device.
        """
        from roller.explanation.kernel_explanations import explain_kernel

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
        """Return why tiles or a program are worse than the kernel's: a capacity that is exceeded, or the slower term.

        Parameters
        ----------
        tiles, fragment, stages, split_k, raster
            See :func:`roller.predict`: extents by layer, or the name of a program as ``construct`` prints it.
        device
            See :meth:`explain`.
        """
        from roller.explanation.kernel_explanations import why_not_for_kernel

        return why_not_for_kernel(self, tiles, device, fragment, (stages, split_k, raster))

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the kernel, with the values of its constants, for :func:`roller.load`.

        Raises
        ------
        ArtifactError
            If the path cannot be written.
        """
        return self.artifact.save(path)

    def __call__(self, *arrays: Any, out: Any = None, **options: Any) -> Any:
        """Run the kernel.

        Parameters
        ----------
        *arrays
            One array per non-constant input, in call order: NumPy arrays or anything that supports DLPack, in the
            declared shapes and dtypes. On a GPU, CuPy and torch arrays are used in place, on their current stream.
        out
            Output array, or a tuple of them; allocated by default.
        **options
            Options for the backend's launcher: ``stream`` on a GPU.

        Returns
        -------
        The output array, or a tuple of them.

        Raises
        ------
        LaunchError
            If the device is absent, or an array does not fit.
        BuildError
            If a loaded GPU kernel was saved as source only, and its toolchain is missing or fails.
        """
        launcher = self._launcher
        if launcher is None:  # the property takes a lock for the first load
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
        return load_launcher(self.artifact)

    def expect_reachable(self) -> None:
        """Raise an error if the kernel's device is absent.

        Raises
        ------
        LaunchError
            If the device is absent.
        """
        artifact = self.artifact
        if not self._reachable:
            raise LaunchError(
                f"{artifact.expression.name}: the kernel was compiled for '{artifact.device}', which is not this "
                f"machine's device. Save it (kernel.save) and load it where a {artifact.device} is, or "
                "compile with device='cpu' to run here. Source, program and estimate are available everywhere."
            )

    def __repr__(self) -> str:
        a = self.artifact
        doubtful = " (doubtful)" if a.doubt else ""
        measured = "" if a.measured_s is None else f"measured {seconds_text(a.measured_s)}{doubtful}"
        return one_line_repr("CompiledKernel", f"{a.expression.name} on {a.device}: {self.estimate}", measured)

    def _repr_html_(self) -> str:
        rows = (
            (n, seconds_text(c.estimate.seconds), seconds_text(c.measured_s), c.status, str(c.program))
            for n, c in enumerate(self.candidates, 1)
        )
        title = f"{self.artifact.expression} on {self.artifact.device}"
        return html_table(title, ("#", "predicted", "measured", "status", "program"), rows)


def load_saved_kernel(path: str | os.PathLike[str], threads: int | None) -> CompiledKernel | LoadedRangeKernel:
    """Load a saved kernel; ``threads`` replaces the number of threads that it was compiled for."""
    if path_of(path, "path", error=ArtifactError).is_dir():
        from roller.compiler.dynamic.loaded_kernel import load_range_kernel

        return load_range_kernel(path, threads)
    artifact = KernelArtifact.load(path)
    if threads is not None:
        count = validate_threads(threads, KINDS[artifact.program.kind].discrete)
        artifact = replace(artifact, target={**artifact.target, "cores": count})
    return CompiledKernel(artifact)


def candidates_of_records(records: Sequence[CachedCandidate]) -> tuple[Candidate, ...]:
    """Return the candidates that a cache entry describes."""
    from roller.construction.constructor import Candidate
    from roller.perf.estimate import Estimate

    return tuple(
        Candidate(c.id, c.program, Estimate.from_dict(c.estimate), c.status, c.measured_s, c.reason, c.proved)
        for c in records
    )


def load_launcher(artifact: KernelArtifact) -> Any:
    """Return a callable that runs a kernel on its device."""
    target = target_of_language(artifact.language, artifact.expression.name, LaunchError)
    # A kernel compiled for an absent device has source only and is built here.
    return target.load(artifact if artifact.binary is not None else target.build(artifact))
