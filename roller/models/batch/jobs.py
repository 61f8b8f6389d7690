"""The kernels of a batch as jobs: what the cache has them under, and what share of a call each is predicted to take."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

from roller.compiler.autotune import Selection
from roller.core.c_compiler import need_compiler
from roller.expr import TensorExpr
from roller.hardware import DeviceSpec
from roller.models.graph.steps import KernelSource
from roller.runtime.cache_key import CacheKey
from roller.targets import pretends, target_for
from roller.templates.common.options import TEMPLATE_VERSION, ConstructOptions

if TYPE_CHECKING:
    from roller.construction.constructor import Candidate
    from roller.models.batch.executors import Workers

#: Candidates of a kernel, and the positions of those that are made first.
Constructed: TypeAlias = "tuple[tuple[Candidate, ...], tuple[int, ...]]"

#: The best prediction that builds and is correct: what every kernel gets first where time is limited.
QUICK = Selection(deterministic=True)
#: Copies of constants that are taken in turn have so many times the bytes of the cache they shall not be found in.
_BEYOND = 1.5
#: Bytes they have at most, whatever the cache: three kernels that run in turn hold copies at a time.
_MOST_BYTES = 1 << 27
#: Constructions from which on the code generator is loaded beside them: they take as long as that.
_MANY = 8


@dataclass(frozen=True)
class Target:
    """What the kernels of a batch are compiled for.

    Parameters
    ----------
    spec
        What they are constructed for.
    here
        Whether this process runs what it compiles.
    device
        Name of the device kernels are judged on (``"cuda:0"``); empty for the processor.
    elsewhere
        Whether workers of the crew judge kernels for a device that is not here.
    """

    spec: DeviceSpec
    here: bool
    device: str = ""
    elsewhere: bool = False

    @property
    def judged(self) -> bool:
        """Whether kernels are checked, and not only lowered."""
        return self.here or self.elsewhere

    @property
    def pretended(self) -> bool:
        """Whether the device computes with the reference: nothing is built for it, or kept."""
        return pretends(self.device)


@dataclass(frozen=True)
class Settings:
    """How the kernels of a batch are compiled.

    Parameters
    ----------
    options
        As of ``roller.compile``; the constants of each kernel are its own.
    deterministic
        Time nothing.
    budget_s
        Seconds after which kernels that have their best prediction keep it; ``None`` for all the time it takes.
    seed
        Of random inputs.
    prove_s
        Seconds in which kernels for a GPU that is not here are proved, all together; 0 for none.
    remeasure
        Whether kernels that the cache has are chosen and timed once more.
    threads
        Threads a call may use, where they are not all of the processor's.
    """

    options: ConstructOptions = field(default_factory=lambda: ConstructOptions(top_k="auto"))
    deterministic: bool = False
    budget_s: float | None = None
    seed: int = 0
    prove_s: float = 0.0
    remeasure: bool = False
    threads: int | None = None

    def on_threads(self, threads: int) -> Settings:
        """Return the settings for calls of so many threads: kernels are constructed for as many units."""
        units = threads if self.options.units is None else min(threads, self.options.units)
        return replace(self, options=replace(self.options, units=units), threads=threads)


@dataclass
class Job:
    """One kernel to compile, under all its names.

    ``full`` is its key as a kernel alone, its identity here; ``timed`` what the cache has it under where candidates are
    timed as in a model, with constants that take turns (``rotating_bytes``; 0 for those that are always the same).
    One that is ``light`` is not timed at all: its share of the model is so small that no choice shows in it. ``elders``
    is how many kernels like it were timed that say what is worth building of it; 0 where predictions alone do.
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
    elders: int = 0

    @property
    def starts(self) -> list[Candidate]:
        """Candidates worth timing."""
        return [self.candidates[n] for n in self.first]

    @property
    def digest(self) -> str:
        """Identity of the job."""
        return self.full.digest

    @property
    def share_s(self) -> float:
        """Predicted seconds of a call of the model that this kernel takes."""
        return self.uses * (self.candidates[0].estimate.seconds if self.candidates else 0.0)

    def key(self, how: Selection) -> CacheKey:
        """Return what the cache has the kernel under that is chosen so."""
        return self.quick if self.way(how) == QUICK else self.timed

    def way(self, how: Selection) -> Selection:
        """Return how it is chosen where kernels that weigh enough are chosen by ``how``."""
        return QUICK if self.light else how

    def starts_with(self, how: Selection) -> list[Candidate]:
        """Candidates that are made whatever comes of them."""
        return [self.candidates[0]] if self.way(how) == QUICK else self.starts


def jobs_of(
    sources: Mapping[str, KernelSource],
    target: Target,
    settings: Settings,
    uses: Mapping[str, int],
    passing: Mapping[str, int] | None = None,
) -> list[Job]:
    """Return one job per distinct kernel."""
    jobs: dict[str, Job] = {}
    for key, source in sources.items():
        units = source.units or settings.options.units
        options = replace(settings.options, constants=tuple(source.constants), units=units)
        expression, spec_key = options.meant(source.expression), target.spec.content_key
        identity = options.identity(expression)
        rotating_bytes = 0 if passing is None or target.device else rotation(target.spec, passing.get(key, 0))
        turns = {"rotating_bytes": rotating_bytes} if rotating_bytes else {}
        full, quick, timed = (
            CacheKey.of(expression, spec_key, TEMPLATE_VERSION, identity | more)
            for more in (Selection().identity(), QUICK.identity(), Selection().identity() | turns)
        )
        job = jobs.setdefault(full.digest, Job(expression, options, full, quick, timed, rotating_bytes))
        job.names.append((key, expression))
        job.uses += uses.get(key, 1)
    return list(jobs.values())


def rotation(spec: DeviceSpec, passing: int) -> int:
    """Return the bytes of constants that take turns while a kernel is timed.

    Examples
    --------
    >>> import roller
    >>> spec = roller.load_spec("cpu-avx512")
    >>> rotation(spec, 1000), rotation(spec, 10**10) > spec.memory_layers[-2].capacity_bytes
    (0, True)
    """
    caches = [x.capacity_bytes * (spec.units if x.scope == "unit" else 1) for x in spec.memory_layers[:-1]]
    return min(_MOST_BYTES, int(_BEYOND * max((c for c in caches if c < passing), default=0)))


def construct(jobs: Iterable[Job], target: Target, crew: Workers) -> tuple[dict[str, Constructed], dict[str, str]]:
    """Construct in parallel; return candidates, and reasons of those that have none, by job digest."""
    import roller.construction.worth_timing  # noqa: F401 - imported before forking, so that the children inherit it
    from roller.models.batch.executors import Forks
    from roller.models.batch.tasks import Construct

    tasks = {j.digest: Construct(j.expression, target.spec, j.options, Selection()) for j in jobs}
    if tasks and target.here and not target.spec.traits.discrete and isinstance(crew, Forks):
        need_compiler("compiling for this processor")  # before minutes of work that end where kernels are linked
    # Always here: it takes milliseconds each, and a machine elsewhere would first have to load roller.
    here = crew if isinstance(crew, Forks) else Forks()
    if len(tasks) > _MANY and not target.pretended and here is crew:  # what is constructed is built next
        results = here.map_preparing(tasks, target.spec.target.get("language", ""))
    else:
        results = here.map(tasks, patient=True)
    found = {i: r.value for i, r in results.items() if r.value is not None}
    return found, {i: r.record.reason for i, r in results.items() if r.value is None}


def builds(target: Target) -> bool:
    """Whether kernels of a GPU can be built on this machine; those of a processor are built as they are lowered."""
    found = target_for(target.spec)
    return bool(found.toolchain) and (target.here or found.can_build())
