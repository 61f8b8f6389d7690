"""The whole road, top to bottom: expression -> candidates -> kernels -> checked, timed -> the best one.

This is the one file that names every stage. Construction and prediction import neither TVM nor a
backend; code generation and the runtime arrive only inside :func:`compile`, and only where the cache has
no kernel: a warm compile loads neither of them, nor the constructor and its model.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from roller.arguments import constants_of, expression_of, options_of, target_of
from roller.artifact import Constant, KernelArtifact
from roller.compiled import CompiledKernel
from roller.construction.options import TEMPLATE_VERSION, ConstructOptions
from roller.errors import BuildError, NoCandidateError
from roller.expr import TensorExpr
from roller.hardware import DeviceSpec
from roller.tile import RProgram

if TYPE_CHECKING:
    from roller.construction.constructor import Candidate
    from roller.construction.named import Tile
    from roller.perf.estimate import Estimate
    from roller.runtime.cache import CachedCandidate, CacheEntry
    from roller.runtime.devices import DeviceHandle
    from roller.runtime.records import Record

__all__ = ["Candidate", "CompiledKernel", "ConstructOptions", "compile", "construct", "load", "predict"]

#: Name of the detected processor of this machine: its kernels are built, checked and timed by this process.
THIS_CPU = "cpu"


def __getattr__(name: str) -> Any:
    """Load ``Candidate`` with the constructor it belongs to, when it is asked for."""
    if name == "Candidate":
        from roller.construction.constructor import Candidate

        return Candidate
    raise AttributeError(f"module 'roller.pipeline' has no attribute '{name}'")


def construct(
    expr: Any, device: str | DeviceSpec, top_k: int | None = None, options: ConstructOptions | None = None
) -> list[Candidate]:
    """Construct programs for a device from its spec alone: no TVM, no device.

    Parameters
    ----------
    expr
        A TensorExpr, a list of TVM TE tensors, or a PrimFunc.
    device
        Name of a spec (``"v100"``), path of a YAML, ``"cpu"`` for this machine, or a DeviceSpec; or a device that is
        here, ``"cuda:0"`` or ``"rocm:0"``, which takes the spec of its architecture that is nearest.
    top_k
        Candidates to return; overrides ``options.top_k``.
    options
        See :class:`ConstructOptions`.

    Returns
    -------
    list of Candidate
        Distinct programs, best estimate first; fewer than asked only where fewer exist.

    Examples
    --------
    >>> import roller
    >>> found = roller.construct(roller.ops.matmul(4096, 4096, 4096), device="v100", top_k=3)
    >>> len(found), found[0].estimate.bottleneck
    (3, 'compute')
    """
    from roller.construction.constructor import construct_candidates

    return list(construct_candidates(expression_of(expr), target_of(device)[0], options_of(options, top_k)))


def predict(expr: Any, device: str | DeviceSpec, tiles: Mapping[str, Tile]) -> Estimate:
    """Price tiles a person names.

    Parameters
    ----------
    expr, device
        As for :func:`construct`.
    tiles
        Per layer (``register`` and ``shared`` on a GPU; ``register``, ``l1``, ``l2`` on a CPU) the extents by axis
        name of the expression (before fusion), or a sequence in axis order. An axis left out is 1 in ``register``
        and the extent of the layer above elsewhere; extents beyond the tensor are padded.

    Returns
    -------
    Estimate
        Predicted ``seconds``, ``bottleneck`` and ``terms``.

    Raises
    ------
    TileError
        Where a tile is malformed or exceeds a capacity.

    Examples
    --------
    >>> import roller
    >>> tiles = {"shared": {"i": 128, "j": 64, "k": 32}, "register": {"i": 8, "j": 4}}
    >>> estimate = roller.predict(roller.ops.matmul(4096, 4096, 4096), device="v100", tiles=tiles)
    >>> 0.010 < estimate.seconds < 0.013
    True
    """
    from roller import perf
    from roller.construction.named import program_from_tiles, replace_budget

    spec = target_of(device)[0]
    return perf.estimate_program(program_from_tiles(expression_of(expr), spec, tiles), replace_budget(spec))


def compile(
    expr: Any,
    device: str | DeviceSpec = THIS_CPU,
    top_k: int | None = None,
    options: ConstructOptions | None = None,
    *,
    constants: Mapping[str, Any] | None = None,
    seed: int = 0,
    cache: bool = True,
) -> CompiledKernel:
    """Compile an expression for a device, or take the kernel from the cache.

    On this machine's processor (``device="cpu"``) the best ``top_k`` candidates are built in parallel, checked
    against the float64 reference, timed one at a time, and the fastest is returned; likewise on a GPU of this
    machine (``device="cuda:0"``), in a process of its own. For the name of any other device the candidates are
    constructed, the best one is lowered to source, and no device is touched. ``device="null:v100"`` pretends: it
    computes with the reference and measures the estimate with noise, for tests; it is never cached.

    Parameters
    ----------
    expr, device, top_k, options
        As for :func:`construct`.
    constants
        Values of inputs that do not change from call to call (weights), by name: the kernel is called with the other
        inputs only, and what of them a CPU kernel packs is packed when it is loaded. They are copied, travel with
        the kernel when it is saved, and are no part of the cache's key: one kernel serves all values.
    seed
        Seed of the random inputs, constant ones too, that candidates are checked and timed with; it is no part of the
        cache's key.
    cache
        Whether the kernel may come from, and goes to, the cache (``roller cache info`` says where). Expressions
        that differ in nothing but names share a kernel; the axes of its programs are named as they first were.

    Returns
    -------
    CompiledKernel

    Raises
    ------
    NoCandidateError
        Where no candidate survives; the message groups the reasons. It is not cached.
    LaunchError
        Where a device named as being here is not; the message says what is missing.
    RollerError
        Where a constant is no input of the expression, or its array does not fit.
    """
    (spec, handle), expression = target_of(device), expression_of(expr)
    chosen, values = constants_of(constants, expression, options_of(options, top_k))
    if not cache or (handle is not None and handle.kind == "null"):
        return _compile(expression, spec, chosen, seed, handle).holding(values)
    from roller.runtime.cache import CacheKey, KernelCache, for_expression

    fresh: list[CompiledKernel] = []

    def build() -> CacheEntry:
        fresh.append(_compile(expression, spec, chosen, seed, handle))
        return _entry_of(fresh[0])

    here = _is_here(spec) or handle is not None
    key = CacheKey.of(expression, spec.content_key, TEMPLATE_VERSION, chosen.identity(expression))
    # What runs here must have been measured; elsewhere a prediction will do, a measurement is welcome.
    entry = KernelCache().load_or_build(key, build, measured=here)
    if fresh:
        return fresh[0].holding(values)
    found = for_expression(entry, expression)
    kernel = CompiledKernel(found.artifact, lambda: tuple(_candidate_of(c) for c in found.candidates), here)
    return kernel.holding(values)


def load(path: str | os.PathLike[str]) -> CompiledKernel:
    """Load a saved artifact; nothing is compiled and TVM's compiler is not needed.

    Raises
    ------
    ArtifactError
        Where the file is missing, damaged or of a newer format.
    """
    return CompiledKernel(KernelArtifact.load(path))


def lower(program: RProgram, expression: TensorExpr, spec: DeviceSpec) -> KernelArtifact:
    """Generate the kernel of one program; the target language of the spec picks the code generator.

    Raises
    ------
    BuildError
        Where the program cannot be lowered, or the target has no code generator.
    """
    language = spec.target.get("language")
    if language == "cuda":
        from roller.codegen import cuda

        return _with_constants(cuda.lower(program, expression, spec.target["arch"], spec.name))
    if language == "hip":
        from roller.codegen import hip

        return _with_constants(hip.lower(program, expression, spec.target["arch"], spec.name))
    if language == "llvm":
        from roller.codegen import llvm

        vector_bytes = spec.teu.lanes * 4
        return llvm.lower(program, expression, spec.target["mcpu"], spec.units, spec.name, vector_bytes)
    raise BuildError(
        f"{spec.name}: no code generator for target language '{language}' yet. Construct and predict work; compile for "
        "a device whose spec has the target language 'cuda', 'hip' or 'llvm'."
    )


def _with_constants(artifact: KernelArtifact) -> KernelArtifact:
    """Name the constants in the artifact of a GPU, whose kernels take them as any other input."""
    names = artifact.program.constants
    found = (Constant(n) for n, t in enumerate(artifact.expression.inputs) if t.name in names)
    return replace(artifact, constants=tuple(found))


def _is_here(spec: DeviceSpec) -> bool:
    """Whether this process runs the kernels it compiles for the device."""
    return spec.kind == "cpu" and spec.name == THIS_CPU


def _compile(
    expression: TensorExpr, spec: DeviceSpec, options: ConstructOptions, seed: int, handle: DeviceHandle | None = None
) -> CompiledKernel:
    """Construct, and build, check and time where the device is here; lower the best one where it is not."""
    from roller.construction.constructor import construct_candidates

    candidates = construct_candidates(expression, spec, options)
    if handle is not None:
        return _compile_on(handle, expression, spec, candidates, seed)
    if _is_here(spec):
        return _compile_here(expression, spec, candidates, seed)
    return _lower_best(expression, spec, candidates)


def _entry_of(kernel: CompiledKernel) -> CacheEntry:
    from roller.runtime.cache import CachedCandidate, CacheEntry

    return CacheEntry(
        kernel.artifact,
        tuple(
            CachedCandidate(c.id, c.program, c.estimate.to_dict(), c.status, c.measured_s, c.reason)
            for c in kernel.candidates
        ),
    )


def _candidate_of(cached: CachedCandidate) -> Candidate:
    from roller.construction.constructor import Candidate
    from roller.perf.estimate import Estimate

    estimate = Estimate.from_dict(cached.estimate)
    return Candidate(cached.id, cached.program, estimate, cached.status, cached.measured_s, cached.reason)


def _compile_here(
    expression: TensorExpr, spec: DeviceSpec, candidates: tuple[Candidate, ...], seed: int
) -> CompiledKernel:
    """Build, check and time the candidates on this machine's processor; keep the fastest correct one."""
    from roller.codegen import llvm  # noqa: F401 - imported before forking, so that the children inherit TVM
    from roller.runtime.cpu_profile import profile

    def make(candidate: Candidate) -> KernelArtifact:
        return lower(candidate.program, expression, spec)

    return _best_of(expression, spec, candidates, make, lambda built: profile(expression, built, seed))


def _compile_on(
    handle: DeviceHandle, expression: TensorExpr, spec: DeviceSpec, candidates: tuple[Candidate, ...], seed: int
) -> CompiledKernel:
    """Build, check and time the candidates on a device of this machine; keep the fastest correct one."""
    import roller.te.compat  # noqa: F401 - imported before forking, so that the children inherit TVM
    from roller.backends.build import build
    from roller.backends.null.device import NullKernel
    from roller.runtime.profiler import ProfileOptions, profile

    pretended = handle.kind == "null"

    def make(candidate: Candidate) -> KernelArtifact:
        artifact = replace(lower(candidate.program, expression, spec), estimate=candidate.estimate.to_dict())
        return artifact if pretended else build(artifact)

    options = ProfileOptions(seed=seed)
    kernel = _best_of(expression, spec, candidates, make, lambda built: profile(expression, built, [handle], options))
    return CompiledKernel(kernel.artifact, kernel.candidates, launcher=NullKernel if pretended else None)


def _best_of(
    expression: TensorExpr,
    spec: DeviceSpec,
    candidates: tuple[Candidate, ...],
    make: Callable[[Candidate], KernelArtifact],
    profile: Callable[[dict[str, KernelArtifact]], Mapping[str, Record]],
) -> CompiledKernel:
    """Make all candidates in parallel, profile what was built, return the fastest with the record of each."""
    from roller.runtime.build_pool import build_all, build_here

    jobs = {c.id: c for c in candidates}
    built = build_all(jobs, make) if len(jobs) > 1 else build_here(jobs, make)
    artifacts = {i: r.value for i, r in built.items() if r.value is not None}
    records = {i: r.record for i, r in built.items()}
    records.update(profile(artifacts))
    outcome = tuple(_with_record(c, records[c.id]) for c in candidates)
    timed = [c for c in outcome if c.measured_s is not None]
    if not timed:
        raise _none_survived(expression, spec, records)
    best = min(timed, key=lambda c: (c.measured_s, c.id))
    return CompiledKernel(_finished(artifacts[best.id], best), outcome)


def _lower_best(expression: TensorExpr, spec: DeviceSpec, candidates: tuple[Candidate, ...]) -> CompiledKernel:
    """Lower candidates in order until one succeeds; the others keep their reasons."""
    from roller.runtime.records import Record

    outcome = list(candidates)
    for n, c in enumerate(candidates):
        try:
            artifact = lower(c.program, expression, spec)
        except BuildError as err:
            outcome[n] = replace(c, status="failed", reason=str(err))
            continue
        return CompiledKernel(_finished(artifact, c), tuple(outcome), reachable=False)
    raise _none_survived(expression, spec, {c.id: Record(c.id, "failed", c.reason or "") for c in outcome})


def _finished(artifact: KernelArtifact, candidate: Candidate) -> KernelArtifact:
    return replace(artifact, estimate=candidate.estimate.to_dict(), measured_s=candidate.measured_s)


def _with_record(candidate: Candidate, record: Record) -> Candidate:
    return replace(candidate, status=record.status, measured_s=record.measured_s, reason=record.reason or None)


def _none_survived(expression: TensorExpr, spec: DeviceSpec, records: Mapping[str, Record]) -> NoCandidateError:
    from roller.runtime.records import grouped_reasons

    return NoCandidateError(
        f"{expression.name} on {spec.name}: none of {len(records)} candidates survived: "
        f"{grouped_reasons(records.values())}. Try a larger top_k, or report the expression."
    )
