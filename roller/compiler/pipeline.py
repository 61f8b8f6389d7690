"""The whole pipeline: expression -> candidates -> kernels -> checked and timed kernels -> the best one.

This file names every stage and imports each stage where it is needed: construction and prediction load neither TVM nor
a backend, and compiling from the cache loads neither code generation nor the constructor.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from roller.compile_arguments import name_and_copy_constants, parse_expression, resolve_options, spec_and_local_device
from roller.core.c_compiler import require_compiler
from roller.errors import RollerError, TileError
from roller.expr import TensorExpr
from roller.hardware import DeviceSpec
from roller.hardware.detect_cpu_spec import is_this_machine
from roller.targets import target_for
from roller.templates.common.options import TEMPLATE_VERSION, ConstructOptions
from roller.tile import RProgram
from roller_runtime.core.validation import validate_flag, validate_threads

if TYPE_CHECKING:
    from roller.artifact import KernelArtifact
    from roller.backends.parse_device_names import DeviceHandle
    from roller.compiler.autotune import Selection
    from roller.compiler.autotune.prove_on_emulator import ProofVerdict
    from roller.compiler.compiled_kernel import CompiledKernel
    from roller.compiler.dynamic.loaded_kernel import LoadedRangeKernel
    from roller.construction.constructor import Candidate
    from roller.construction.explicit_tiles import Tile
    from roller.perf.estimate import Estimate
    from roller.runtime.cache import CacheEntry

__all__ = ["Candidate", "CompiledKernel", "ConstructOptions", "compile", "construct", "load", "predict"]

#: Name of this machine's detected CPU, whose kernels are built, checked and timed by this process.
THIS_CPU = "cpu"


def __getattr__(name: str) -> Any:
    """Load a stage's result type on first use."""
    if name == "Candidate":
        from roller.construction.constructor import Candidate

        return Candidate
    if name == "CompiledKernel":
        from roller.compiler.compiled_kernel import CompiledKernel

        return CompiledKernel
    raise AttributeError(f"module 'roller.compiler.pipeline' has no attribute '{name}'")


def construct(
    expr: Any, device: str | DeviceSpec, top_k: int | Literal["auto"] | None = None,
    options: ConstructOptions | None = None,
) -> list[Candidate]:  # fmt: skip
    """Construct programs for a device from its spec alone, without TVM or the device.

    Parameters
    ----------
    expr
        A TensorExpr, a list of TVM TE tensors, or a PrimFunc.
    device
        Name of a spec (``"v100"``), path of a YAML file, ``"cpu"`` for this machine, or a DeviceSpec; or a local
        device, ``"cuda:0"`` or ``"rocm:0"``, which gets the closest spec for its architecture.
    top_k
        Number of candidates to return; overrides ``options.top_k``. ``"auto"`` returns those that :func:`compile` would
        time.
    options
        See :class:`ConstructOptions`.

    Returns
    -------
    list of Candidate
        Distinct programs, best estimate first; fewer than requested only if fewer exist.

    Examples
    --------
    >>> import roller
    >>> found = roller.construct(roller.ops.matmul(4096, 4096, 4096), device="v100", top_k=3)
    >>> len(found), found[0].estimate.bottleneck
    (3, 'compute')
    """
    from roller.construction.constructor import construct_candidates

    spec, chosen = spec_and_local_device(device)[0], resolve_options(options, top_k)
    found = construct_candidates(chosen.meant(parse_expression(expr)), spec, chosen)
    if chosen.top_k != "auto":
        return list(found)
    from roller.construction.worth_timing import positions_of_candidates_to_time

    return [found[n] for n in positions_of_candidates_to_time(found, spec)]


def predict(
    expr: Any, device: str | DeviceSpec, tiles: Mapping[str, Tile] | str | RProgram | None = None, *,
    fragment: str | None = None, stages: int = 1, split_k: int = 1, raster: int = 1, warm: Sequence[str] = (),
    policy: str | None = None,
) -> Estimate:  # fmt: skip
    """Predict the time of a kernel given by tiles, by a program or its name, or as a framework's library kernel.

    Parameters
    ----------
    expr, device
        See :func:`construct`.
    tiles
        For each layer (``register`` and ``shared`` on a GPU, also ``reg``, ``thread`` and ``smem``, ``lds``,
        ``scratchpad``, ``block``; ``register``, ``l1``, ``l2`` on a CPU) the extents by axis name, or a sequence in
        axis order, for the expression or its fused or grouped form (``n*ho*wo``, ``c*kh*kw``). The reduction step is
        the reduction extent in ``shared``, or is given as ``rstep``. An omitted axis is 1 in ``register`` and has the
        extent of the layer above elsewhere. Extents beyond the tensor are padded, and no extent needs to be a multiple
        of another. Alternatively, the name of a program as :func:`construct` prints it (``str(candidate.program)``), or
        the program itself, which gives exactly the estimate from its construction.
    fragment
        Matrix instruction of the device (``"mma.m16n8k16.f16.f32"``) for the tiles, which must then consist of whole
        fragments: ``register`` is the combined tile of the instruction's threads (one fragment along the reduction).
    stages, split_k, raster
        Mechanisms in addition to tiles; a program's name includes them (:class:`~roller.tile.RProgram`).
    warm
        GPU: inputs that earlier kernels left in the shared cache (activations). They are read from the cache if all
        tensors of the call fit into it together, otherwise from DRAM.
    policy
        GPU: ``"library"`` for the kernel of a framework's library, including the time to call it; ``"library-graph"``
        for the same kernel replayed from a graph (:mod:`roller.templates.common.library_kernel_limits`). With
        ``tiles`` (not a program), the library kernel with these tiles.

    Returns
    -------
    Estimate
        Predicted ``seconds``, ``bottleneck`` and ``terms``.

    Raises
    ------
    TileError
        If a tile or a name is malformed, does not belong to the expression, or exceeds a capacity.

    Examples
    --------
    >>> import roller
    >>> matmul = roller.ops.matmul(4096, 4096, 4096)
    >>> tiles = {"shared": {"i": 128, "j": 64, "k": 32}, "register": {"i": 8, "j": 4}}
    >>> 0.010 < roller.predict(matmul, device="v100", tiles=tiles).seconds < 0.013
    True
    >>> best = roller.construct(matmul, device="v100", top_k=1)[0]
    >>> roller.predict(matmul, "v100", str(best.program)) == best.estimate
    True
    """
    from roller.construction.check_inputs_declared_cached import check_cached_inputs
    from roller.construction.explicit_tiles import ProgramMechanisms, price_named_tiles
    from roller.construction.parse_program_names import estimate_named_program, program_from_name

    expression, spec = parse_expression(expr), spec_and_local_device(device)[0]
    how = ProgramMechanisms(stages, split_k, raster)
    kept = check_cached_inputs(expression, spec, warm)
    if policy is None and tiles is None:
        raise TileError("tiles: expected a mapping from layer to extents, got NoneType. Name tiles, or a policy.")
    if policy is not None and isinstance(tiles, (str, RProgram)):
        raise TileError("predict: expected a program, which is ours, or a policy, one of the two. Leave one out.")
    if tiles is None:
        from roller.construction.library_pricing import library_estimate

        if fragment is not None or how != ProgramMechanisms():
            raise TileError("predict: a policy says fragment, stages, split_k and raster. Leave them out.")
        return library_estimate(expression, spec, str(policy), kept)
    if not isinstance(tiles, (str, RProgram)):
        if policy is not None:
            from roller.construction.library_pricing import spec_with_call_overhead

            spec = spec_with_call_overhead(expression, spec, policy)
        return price_named_tiles(expression, spec, tiles, fragment, how, kept).estimate
    if fragment is not None or how != ProgramMechanisms():
        raise TileError("predict: a program's name says fragment, stages, split_k and raster. Write them into it.")
    return estimate_named_program(program_from_name(expression, spec, str(tiles)), spec, kept)


def compile(
    expr: Any,
    device: str | DeviceSpec = THIS_CPU,
    top_k: int | Literal["auto"] | None = None,
    options: ConstructOptions | None = None,
    *,
    constants: Mapping[str, Any] | None = None,
    seed: int = 0,
    cache: bool = True,
    deterministic: bool = False,
    refine_s: float | None = None,
    spec: str | DeviceSpec | None = None,
    prove: bool = False,
    prove_s: float | None = None,
    remeasure: bool = False,
    shapes: Mapping[str, Any] | None = None,
    threads: int | None = None,
) -> CompiledKernel:
    """Compile an expression for a device, or return the cached kernel.

    On this machine's CPU (``device="cpu"``), the best ``top_k`` candidates are built in parallel, checked against the
    float64 reference and timed one at a time, and the fastest is returned. The same happens on a GPU of this machine
    (``device="cuda:0"``), in a separate process. For the name of any other device, candidates are constructed and the
    best one is lowered to source without a device. For tests, ``device="null:v100"`` simulates a device: it computes
    with the reference and reports the estimate with noise as a measurement, and its kernels are never cached.

    Parameters
    ----------
    expr, device, top_k, options
        See :func:`construct`. With ``top_k="auto"``, the model's favourite is timed against those of the best ten
        candidates whose predicted intervals overlap with its own; if there are none, the favourite is built and
        checked, and nothing is timed.
    constants
        Values of inputs that are the same in all calls (weights), by name: the kernel is called with the other inputs
        only, and a CPU kernel packs constants once when it is loaded. They are copied and saved with the kernel but are
        not part of the cache key: one kernel serves all values.
    seed
        Seed of the random inputs, including constants, for checking and timing; it is not part of the
        cache key.
    cache
        Whether to read and write the kernel cache (``roller cache info`` prints its location). Expressions that differ
        only in names share a kernel, whose programs keep the axis names of the first expression.
    deterministic
        Whether to choose without timing: the best prediction is built and checked on a local device, and the next one
        is tried only if that fails, so all machines and ranks get the same program for the same spec. Name a spec
        (``"v100"``, or a YAML file): ``device="cpu"`` is the spec detected or probed on this machine, and other
        machines have different specs.
    refine_s
        Duration, in seconds, of a local search around the fastest candidate on a local device: neighbouring tiles are
        built, checked and timed against it. This is useful for small operators and off by default.
    spec
        With a local device (``"cuda:0"``), the spec to construct for (a name, a probed YAML file, or a DeviceSpec)
        instead of the shipped spec for its architecture.
    prove
        Whether to run the kernel for an absent device on the emulator, which needs g++: a candidate that is wrong,
        reads or writes out of bounds, or lacks a barrier is replaced by the next one. The result is the candidate's
        ``proved``: ``"emulated"`` if the whole grid ran, or the blocks that ran if running all of them takes too long.
        The cache stores the proof.
    prove_s
        Budget of a proof in seconds; 20 by default.
    remeasure
        Whether to choose and time again even if the kernel is cached, for example because the machine changed or was
        busy. A doubtful result does not replace an undisturbed one.
    shapes
        Ranges of axes, for this machine's CPU and for GPUs: ``{"ho": range(7, 65), "wo": range(7, 65)}``. A few kernels
        cover them: a :class:`~roller.compiler.dynamic.symbolic_call.SymbolicRange`, or, on a CPU for some ranges of the
        first dimension, a :class:`~roller.compiler.dynamic.kernel.VaryingKernel`. They are not cached.
    threads
        CPU: number of threads per call, including the calling thread, and of cores that the kernel is constructed for;
        by default, or if there are fewer, all. With ``1``, calls wake no other thread. See also :func:`load`.

    Returns
    -------
    CompiledKernel
        If other programs disturbed every timing, its ``doubt`` gives the reason why its time and the choice may be
        wrong; the next compilation then measures again.

    Raises
    ------
    NoCandidateError
        If no candidate survives; the message groups the reasons. Failures are not cached.
    LaunchError
        If a named local device is absent (the message names the missing part); if ``threads`` is not a positive
        integer, or is given for a GPU.
    RollerError
        If a constant is not an input of the expression or its array does not fit; if ``refine_s`` is given for an
        absent device or with ``deterministic``; if ``prove`` is given for a local device.
    EmulationError
        If ``prove`` is given and g++ is missing.
    """
    from roller.compiler.autotune import Selection
    from roller.compiler.autotune.prove_on_emulator import is_proof_exhausted, proof_budget_s
    from roller.compiler.compiled_kernel import CompiledKernel, candidates_of_records
    from roller.runtime.random_inputs import checked_seed

    (spec, handle), expression = spec_and_local_device(device, spec), parse_expression(expr)
    chosen, values = name_and_copy_constants(constants, expression, resolve_options(options, top_k))
    if threads is not None:
        chosen = chosen.with_threads(validate_threads(threads, spec.traits.discrete), spec.units)
    expression = chosen.meant(expression)
    seed, cache, remeasure = checked_seed(seed), validate_flag(cache, "cache"), validate_flag(remeasure, "remeasure")
    how = Selection(deterministic, 0.0 if refine_s is None else refine_s)
    here = is_this_machine(spec) or handle is not None
    if how.refine_s and not here:
        raise RollerError(f"refine_s: expected a device that is here to time on, got '{spec.name}'. Leave it out.")
    if shapes is not None:
        from roller.compiler.dynamic.compile import compile_varying

        beside = {"prove": prove, "prove_s": prove_s is not None, "remeasure": remeasure, "top_k": top_k is not None}
        return compile_varying(expression, spec, shapes, chosen, seed, how, here, beside, handle).holding(values)
    prove_for_s = proof_budget_s(prove, prove_s, here, spec.name) if prove is not False or prove_s is not None else 0.0
    if not cache or (handle is not None and handle.target.pretends):
        return _compile_uncached(expression, spec, chosen, seed, handle, how, prove_for_s).holding(values)
    from roller.runtime.cache import CacheKey, KernelCache
    from roller.runtime.cache_entry import make_cache_entry, with_expression
    from roller.runtime.list_and_drop_cached_kernels import remove_wrong_kernel_on_failure

    fresh: list[CompiledKernel] = []

    def build() -> CacheEntry:
        fresh.append(_compile_uncached(expression, spec, chosen, seed, handle, how, prove_for_s))
        return make_cache_entry(fresh[0].artifact, fresh[0].candidates)

    key = CacheKey.of(expression, spec.content_key, TEMPLATE_VERSION, chosen.identity(expression) | how.identity())
    # A kernel for a local device must have been checked here, and timed unless excluded; for others a prediction
    # is enough, and a measurement is welcome.
    kept = KernelCache()
    entry = kept.load_or_build(key, build, measured=here, anew=remeasure)
    if prove_for_s and not fresh and not is_proof_exhausted(entry.artifact, prove_for_s):
        with remove_wrong_kernel_on_failure(kept, key):
            entry = build()
        kept.store(key, entry)
    if fresh:
        return fresh[0].holding(values)
    found = with_expression(entry, expression)
    candidates = partial(candidates_of_records, found.candidates)  # when they are looked at
    return CompiledKernel(found.artifact, candidates, here, cached_at=found.stored_at).holding(values)


def load(path: str | os.PathLike[str], *, threads: int | None = None) -> CompiledKernel | LoadedRangeKernel:
    """Load a saved kernel; nothing is compiled, and TVM's compiler is not needed.

    Parameters
    ----------
    path
        File or folder written by the kernel's ``save``. It contains executable code: load only from trusted sources.
    threads
        Maximum number of threads per call of a kernel for a processor, including the calling thread; by default as many
        as it was compiled for. The kernel is not changed: compile with ``threads=`` for the one that suits them best.

    Raises
    ------
    ArtifactError
        If the file or folder is missing, damaged, in a newer format, or contains no kernel.
    LaunchError
        If ``threads`` is not a positive integer or is given for a kernel of a GPU.
    """
    from roller.compiler.compiled_kernel import load_saved_kernel

    return load_saved_kernel(path, threads)


def lower(program: RProgram, expression: TensorExpr, spec: DeviceSpec) -> KernelArtifact:
    """Generate the kernel of a program with the code generator for the spec's language."""
    made: KernelArtifact = target_for(spec).generation().lower_for(program, expression, spec)
    return made


def _compile_uncached(
    expression: TensorExpr, spec: DeviceSpec, options: ConstructOptions, seed: int, handle: DeviceHandle | None = None,
    how: Selection | None = None, prove_s: float = 0.0,
) -> CompiledKernel:  # fmt: skip
    """Construct candidates; choose on a local device, or lower the best and try to prove it for ``prove_s`` s."""
    from roller.compiler.autotune import Selection, choose_first_lowered, prove_on_emulator
    from roller.compiler.autotune.avoid_unemitted_instructions import spec_with_emitted_instructions
    from roller.construction.constructor import construct_candidates, spec_of_device_share

    spec = spec_with_emitted_instructions(expression, spec)
    candidates = construct_candidates(expression, spec, options)
    if handle is not None or is_this_machine(spec):
        return _compile_on_local_device(handle, expression, spec, candidates, options, seed, how or Selection())
    share = spec_of_device_share(spec, options)

    def proved(candidate: Candidate, artifact: KernelArtifact) -> tuple[KernelArtifact, ProofVerdict]:
        del candidate
        verdict = prove_on_emulator.prove(artifact, prove_s, lower=partial(lower, spec=share), seed=seed)
        return prove_on_emulator.with_proof_verdict(artifact, verdict, prove_s), verdict

    return choose_first_lowered(
        expression, spec, candidates, lambda c: lower(c.program, expression, share), proved if prove_s else None
    )


def _compile_on_local_device(
    handle: DeviceHandle | None, expression: TensorExpr, spec: DeviceSpec, candidates: tuple[Candidate, ...],
    options: ConstructOptions, seed: int, how: Selection,
) -> CompiledKernel:  # fmt: skip
    """Choose among candidates on the local device of ``handle``, or on this machine's CPU if it is ``None``."""
    from roller.backends.build import build
    from roller.compiler.autotune import TuningContext, choose_kernel
    from roller.compiler.compiled_kernel import CompiledKernel
    from roller.construction.constructor import spec_of_device_share
    from roller.runtime.check_and_time_candidates import DeviceBench
    from roller.runtime.check_and_time_cpu_kernels import CpuBench

    if handle is None:
        require_compiler("compiling for this processor")
    target_for(spec).prepare()
    share = spec_of_device_share(spec, options)  # a kernel for a share of the units runs on that share
    pretends = handle is not None and handle.target.pretends

    def make(candidate: Candidate) -> KernelArtifact:
        artifact = replace(lower(candidate.program, expression, share), estimate=candidate.estimate.to_dict())
        return artifact if pretends else build(artifact)

    opened = DeviceBench(expression, handle, seed) if handle else nullcontext(CpuBench(expression, seed))
    with opened as bench:
        kernel = choose_kernel(TuningContext(expression, spec, options, make, bench.profile), candidates, how)
    launcher = handle.target.load if handle is not None and pretends else None
    return CompiledKernel(kernel.artifact, kernel.candidates, launcher=launcher)
