"""The whole road, top to bottom: expression -> candidates -> kernels -> checked, timed -> the best one.

This is the one file that names every stage. Construction and prediction import neither TVM nor a
backend; code generation and the runtime arrive only inside :func:`compile`, and only where the cache has
no kernel: a warm compile loads neither of them, nor the constructor and its model.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from roller.artifact import KernelArtifact
from roller.compiled import CompiledKernel
from roller.construction.options import TEMPLATE_VERSION, ConstructOptions
from roller.errors import BuildError, ExprError, NoCandidateError, RollerError
from roller.expr import TensorExpr
from roller.hardware import DeviceSpec, load_spec
from roller.tile import RProgram

if TYPE_CHECKING:
    from roller.construction.constructor import Candidate
    from roller.construction.named import Tile
    from roller.perf.estimate import Estimate
    from roller.runtime.cache import CachedCandidate, CacheEntry
    from roller.runtime.records import Record

__all__ = ["Candidate", "CompiledKernel", "ConstructOptions", "compile", "construct", "load", "predict"]

#: Name of the detected processor of this machine: the only device whose kernels this process runs.
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
        Name of a spec (``"v100"``), path of a YAML, ``"cpu"`` for this machine, or a DeviceSpec.
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

    return list(construct_candidates(_expression(expr), _spec(device), _options(options, top_k)))


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

    spec = _spec(device)
    return perf.estimate_program(program_from_tiles(_expression(expr), spec, tiles), replace_budget(spec))


def compile(
    expr: Any,
    device: str | DeviceSpec = THIS_CPU,
    top_k: int | None = None,
    options: ConstructOptions | None = None,
    *,
    seed: int = 0,
    cache: bool = True,
) -> CompiledKernel:
    """Compile an expression for a device, or take the kernel from the cache.

    On this machine's processor (``device="cpu"``) the best ``top_k`` candidates are built in parallel, checked
    against the float64 reference, timed one at a time, and the fastest is returned. For any other device the
    candidates are constructed, the best one is lowered to source, and no device is touched.

    Parameters
    ----------
    expr, device, top_k, options
        As for :func:`construct`.
    seed
        Seed of the random inputs that candidates are checked and timed with; it is no part of the cache's key.
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
    """
    expression, spec, chosen = _expression(expr), _spec(device), _options(options, top_k)
    if not cache:
        return _compile(expression, spec, chosen, seed)
    from roller.runtime.cache import CacheKey, KernelCache, for_expression

    fresh: list[CompiledKernel] = []

    def build() -> CacheEntry:
        fresh.append(_compile(expression, spec, chosen, seed))
        return _entry_of(fresh[0])

    here = _is_here(spec)
    key = CacheKey.of(expression, spec.content_key, TEMPLATE_VERSION, chosen.to_dict())
    # What runs here must have been measured; elsewhere a prediction will do, a measurement is welcome.
    entry = KernelCache().load_or_build(key, build, measured=here)
    if fresh:
        return fresh[0]
    found = for_expression(entry, expression)
    return CompiledKernel(found.artifact, lambda: tuple(_candidate_of(c) for c in found.candidates), here)


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

        return cuda.lower(program, expression, spec.target["arch"], spec.name)
    if language == "hip":
        from roller.codegen import hip

        return hip.lower(program, expression, spec.target["arch"], spec.name)
    if language == "llvm":
        from roller.codegen import llvm

        vector_bytes = spec.teu.lanes * 4
        return llvm.lower(program, expression, spec.target["mcpu"], spec.units, spec.name, vector_bytes)
    raise BuildError(
        f"{spec.name}: no code generator for target language '{language}' yet. Construct and predict work; compile for "
        "a device whose spec has the target language 'cuda', 'hip' or 'llvm'."
    )


def _is_here(spec: DeviceSpec) -> bool:
    """Whether this process runs the kernels it compiles for the device."""
    return spec.kind == "cpu" and spec.name == THIS_CPU


def _compile(expression: TensorExpr, spec: DeviceSpec, options: ConstructOptions, seed: int) -> CompiledKernel:
    """Construct, and build, check and time where the device is here; lower the best one where it is not."""
    from roller.construction.constructor import construct_candidates

    candidates = construct_candidates(expression, spec, options)
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
    """Build, check and time the candidates on this machine; keep the fastest correct one."""
    from roller.codegen import llvm  # noqa: F401 - imported before forking, so that the children inherit TVM
    from roller.runtime.build_pool import build_all, build_here
    from roller.runtime.cpu_profile import profile

    by_id = {c.id: c for c in candidates}

    def build(candidate_id: str) -> KernelArtifact:
        return lower(by_id[candidate_id].program, expression, spec)

    jobs = {c.id: c.id for c in candidates}
    built = build_all(jobs, build) if len(jobs) > 1 else build_here(jobs, build)
    artifacts = {i: r.value for i, r in built.items() if r.value is not None}
    records = {i: r.record for i, r in built.items()}
    records.update(profile(expression, artifacts, seed))
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


def _expression(expr: Any) -> TensorExpr:
    if isinstance(expr, TensorExpr):
        return expr
    named = type(expr).__module__.partition(".")[0]
    if named == "tvm" or (isinstance(expr, Sequence) and not isinstance(expr, (str, bytes))):
        from roller.te.reader import read

        return read(expr)
    raise ExprError(
        f"compile: expected a TensorExpr, a list of TVM TE tensors or a PrimFunc, got {type(expr).__name__}. "
        "Build one with roller.ops, or roller.ops.parse(text) for text."
    )


def _spec(device: str | DeviceSpec) -> DeviceSpec:
    if isinstance(device, DeviceSpec):
        return device
    if not isinstance(device, (str, os.PathLike)):
        raise RollerError(f"device: expected the name of a spec, a path or a DeviceSpec, got {type(device).__name__}.")
    return load_spec(str(device))


def _options(options: ConstructOptions | None, top_k: int | None) -> ConstructOptions:
    chosen = options or ConstructOptions()
    return chosen if top_k is None else replace(chosen, top_k=top_k)
