"""Jobs of a batch: one per distinct kernel, with its cache keys and its predicted share of a call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

from roller.compiler.autotune import Selection
from roller.core.c_compiler import require_compiler
from roller.expr import TensorExpr
from roller.hardware import DeviceSpec
from roller.runtime.cache_key import CacheKey
from roller.targets import is_simulated_device, target_for
from roller.templates.common.options import TEMPLATE_VERSION, ConstructOptions
from roller_runtime.plan.program_steps import KernelSource

if TYPE_CHECKING:
    from roller.construction.constructor import Candidate
    from roller.models.batch.executors import Workers

#: Candidates of a kernel, and the positions of those that are built first.
Constructed: TypeAlias = "tuple[tuple[Candidate, ...], tuple[int, ...]]"

#: Selects the best prediction that builds and is correct: the first pass for every kernel if there is a time budget.
QUICK = Selection(deterministic=True)
#: Ratio of the total size of rotating copies of constants to the size of the cache that must not hold them.
_BEYOND = 1.5
#: Maximum number of bytes of rotating copies: three kernels that are timed in turn hold copies at the same time.
_MOST_BYTES = 1 << 27
#: Number of constructions above which loading the code generator takes less time and therefore happens in parallel.
_MANY = 8


@dataclass(frozen=True)
class BatchTarget:
    """Device that the kernels of a batch are compiled for.

    Parameters
    ----------
    here
        Whether this process runs the kernels that it compiles.
    device
        Name of the device that checks and times kernels (``"cuda:0"``); empty for the processor.
    elsewhere
        Whether other machines check and time kernels for a device that this one lacks.
    """

    spec: DeviceSpec
    here: bool
    device: str = ""
    elsewhere: bool = False

    @property
    def checks_kernels(self) -> bool:
        """Whether kernels are checked, not only lowered."""
        return self.here or self.elsewhere

    @property
    def is_null_device(self) -> bool:
        """Whether the null device computes with the reference: kernels for it are neither built nor cached."""
        return is_simulated_device(self.device)


@dataclass(frozen=True)
class BatchSettings:
    """Settings for compiling the kernels of a batch.

    Parameters
    ----------
    options
        See ``roller.compile``; each kernel supplies its own ``constants``.
    deterministic
        Whether no kernel is timed.
    budget_s
        Time, in seconds, after which each kernel keeps its best-predicted candidate; ``None`` for no limit.
    prove_s
        Time limit, in seconds, for all proofs of kernels for an absent GPU together; 0 for no proofs.
    remeasure
        Whether cached kernels are chosen and timed again.
    threads
        Number of threads per call; ``None`` for all threads of the processor.
    """

    options: ConstructOptions = field(default_factory=lambda: ConstructOptions(top_k="auto"))
    deterministic: bool = False
    budget_s: float | None = None
    seed: int = 0
    prove_s: float = 0.0
    remeasure: bool = False
    threads: int | None = None

    def with_threads(self, threads: int) -> BatchSettings:
        """Return the settings for calls on ``threads`` threads: kernels are constructed for that many units."""
        units = threads if self.options.units is None else min(threads, self.options.units)
        return replace(self, options=replace(self.options, units=units), threads=threads)


@dataclass
class Job:
    """One distinct kernel to compile, with all kernel keys that refer to it.

    Parameters
    ----------
    full
        Cache key of the kernel in isolation, which identifies the job.
    timed
        Cache key if candidates are timed as in a model, with rotating constants.
    rotating_bytes
        Total size, in bytes, of rotating copies of constants; 0 if every timed call reads the same constants.
    light
        Whether the kernel is not timed because its share of the model is negligible.
    first
        Positions of the candidates worth timing.
    elders
        Number of similar timed kernels whose errors restricted ``first``; 0 if ``first`` comes from predictions alone.
    """

    expression: TensorExpr
    options: ConstructOptions
    full: CacheKey
    quick: CacheKey
    timed: CacheKey
    rotating_bytes: int = 0
    light: bool = False
    names: list[tuple[str, TensorExpr]] = field(default_factory=list)
    uses: int = 0
    candidates: tuple[Candidate, ...] = ()
    first: tuple[int, ...] = ()
    pilots: int = 0

    @property
    def candidates_worth_timing(self) -> list[Candidate]:
        """The candidates worth timing."""
        return [self.candidates[n] for n in self.first]

    @property
    def digest(self) -> str:
        """Digest that identifies the job."""
        return self.full.digest

    @property
    def share_s(self) -> float:
        """Predicted time, in seconds, that this kernel contributes to a call of the model."""
        return self.uses * (self.candidates[0].estimate.seconds if self.candidates else 0.0)

    def key(self, how: Selection) -> CacheKey:
        """Return the cache key of the kernel chosen by ``how``."""
        return self.quick if self.quick_if_light(how) == QUICK else self.timed

    def quick_if_light(self, how: Selection) -> Selection:
        """Return ``QUICK`` for a negligible kernel, otherwise ``how``."""
        return QUICK if self.light else how

    def candidates_built_first(self, how: Selection) -> list[Candidate]:
        """Return the candidates that are built in any case."""
        return [self.candidates[0]] if self.quick_if_light(how) == QUICK else self.candidates_worth_timing


def make_jobs(
    sources: Mapping[str, KernelSource],
    target: BatchTarget,
    settings: BatchSettings,
    uses: Mapping[str, int],
    passing: Mapping[str, int] | None = None,
) -> list[Job]:
    """Return one job per distinct kernel; ``passing`` gives the number of bytes touched between a kernel's runs."""
    jobs: dict[str, Job] = {}
    for key, source in sources.items():
        units = source.units or settings.options.units
        options = replace(settings.options, constants=tuple(source.constants), units=units)
        expression, spec_key = options.meant(source.expression), target.spec.content_key
        identity = options.identity(expression)
        rotating_bytes = (
            0 if passing is None or target.device else rotating_constant_bytes(target.spec, passing.get(key, 0))
        )
        turns = {"rotating_bytes": rotating_bytes} if rotating_bytes else {}
        full, quick, timed = (
            CacheKey.of(expression, spec_key, TEMPLATE_VERSION, identity | more)
            for more in (Selection().identity(), QUICK.identity(), Selection().identity() | turns)
        )
        job = jobs.setdefault(full.digest, Job(expression, options, full, quick, timed, rotating_bytes))
        job.names.append((key, expression))
        job.uses += uses.get(key, 1)
    return list(jobs.values())


def rotating_constant_bytes(spec: DeviceSpec, passing: int) -> int:
    """Return the total size of rotating constants: more than the largest cache that ``passing`` bytes exceed, or 0.

    Examples
    --------
    >>> import roller
    >>> spec = roller.load_spec("cpu-avx512")
    >>> (rotating_constant_bytes(spec, 1000),
    ...  rotating_constant_bytes(spec, 10**10) > spec.memory_layers[-2].capacity_bytes)
    (0, True)
    """
    caches = [x.capacity_bytes * (spec.units if x.scope == "unit" else 1) for x in spec.memory_layers[:-1]]
    return min(_MOST_BYTES, int(_BEYOND * max((c for c in caches if c < passing), default=0)))


def construct_jobs(
    jobs: Iterable[Job], target: BatchTarget, worker_pool: Workers
) -> tuple[dict[str, Constructed], dict[str, str]]:
    """Construct in parallel; return the candidates and the reasons why kernels have none, both by job digest."""
    import roller.construction.worth_timing  # noqa: F401 - imported before forking, so that the children inherit it
    from roller.models.batch.executors import ForkedWorkers
    from roller.models.batch.worker_tasks import ConstructTask

    tasks = {j.digest: ConstructTask(j.expression, target.spec, j.options, Selection()) for j in jobs}
    if tasks and target.here and not target.spec.traits.discrete and isinstance(worker_pool, ForkedWorkers):
        require_compiler("compiling for this processor")  # fail before construction, not when kernels are linked
    # Construction always runs here: it takes milliseconds, less than a remote worker needs to load roller.
    here = worker_pool if isinstance(worker_pool, ForkedWorkers) else ForkedWorkers()
    if (
        len(tasks) > _MANY and not target.is_null_device and here is worker_pool
    ):  # builds follow and need the code generator
        results = here.run_tasks_while_preparing(tasks, target.spec.target.get("language", ""))
    else:
        results = here.map(tasks, patient=True)
    found = {i: r.value for i, r in results.items() if r.value is not None}
    return found, {i: r.record.reason for i, r in results.items() if r.value is None}


def can_build_separately(target: BatchTarget) -> bool:
    """Return whether this machine can build the target's kernels separately from lowering."""
    found = target_for(target.spec)
    return bool(found.toolchain) and (target.here or found.can_build())
