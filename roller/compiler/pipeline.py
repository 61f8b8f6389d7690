"""The whole road, top to bottom: expression -> candidates -> kernels -> checked, timed -> the best one.

This is the one file that names every stage. Construction and prediction import neither TVM nor a
backend; code generation and the runtime arrive only inside :func:`compile`, and only where the cache has
no kernel: a warm compile loads neither of them, nor the constructor and its model.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from roller.arguments import constants_of, expression_of, options_of, target_of
from roller.core.c_compiler import need_compiler
from roller.core.validation import flag
from roller.errors import RollerError, TileError
from roller.expr import TensorExpr
from roller.hardware import DeviceSpec
from roller.hardware.detect import is_this_machine
from roller.targets import target_for
from roller.templates.common.options import TEMPLATE_VERSION, ConstructOptions
from roller.tile import RProgram

if TYPE_CHECKING:
    from roller.artifact import KernelArtifact
    from roller.backends.devices import DeviceHandle
    from roller.compiler.autotune import Selection
    from roller.compiler.autotune.proving import Verdict
    from roller.compiler.compiled_kernel import CompiledKernel
    from roller.construction.constructor import Candidate
    from roller.construction.explicit_tiles import Tile
    from roller.perf.estimate import Estimate
    from roller.runtime.cache import CacheEntry

__all__ = ["Candidate", "CompiledKernel", "ConstructOptions", "compile", "construct", "load", "predict"]

#: Name of the detected processor of this machine: its kernels are built, checked and timed by this process.
THIS_CPU = "cpu"


def __getattr__(name: str) -> Any:
    """Load what a stage returns with the stage it belongs to, when it is asked for."""
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
    """Construct programs for a device from its spec alone: no TVM, no device.

    Parameters
    ----------
    expr
        A TensorExpr, a list of TVM TE tensors, or a PrimFunc.
    device
        Name of a spec (``"v100"``), path of a YAML, ``"cpu"`` for this machine, or a DeviceSpec; or a device that is
        here, ``"cuda:0"`` or ``"rocm:0"``, which takes the spec of its architecture that is nearest.
    top_k
        Candidates to return; overrides ``options.top_k``. ``"auto"``: those :func:`compile` would time.
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

    spec, chosen = target_of(device)[0], options_of(options, top_k)
    found = construct_candidates(chosen.meant(expression_of(expr)), spec, chosen)
    if chosen.top_k != "auto":
        return list(found)
    from roller.construction.worth_timing import worth_timing

    return [found[n] for n in worth_timing(found, spec)]


def predict(
    expr: Any, device: str | DeviceSpec, tiles: Mapping[str, Tile] | str | RProgram | None = None, *,
    fragment: str | None = None, stages: int = 1, split_k: int = 1, raster: int = 1, warm: Sequence[str] = (),
    policy: str | None = None,
) -> Estimate:  # fmt: skip
    """Price tiles, or a whole program, that a person names; or the kernel a framework's library would run.

    Parameters
    ----------
    expr, device
        As for :func:`construct`.
    tiles
        Per layer (``register`` and ``shared`` on a GPU, also ``reg``, ``thread`` and ``smem``, ``lds``,
        ``scratchpad``, ``block``; ``register``, ``l1``, ``l2`` on a CPU) the extents by axis name, or a sequence in
        axis order: of the expression, or of its fused or grouped form (``n*ho*wo``, ``c*kh*kw``). The reduction step
        is the reduction extent in ``shared``, or stands apart as ``rstep``. An axis left out is 1 in ``register`` and
        the extent of the layer above elsewhere; extents beyond the tensor are padded; nothing needs to be a
        multiple of anything.
        Or the name of a program, as :func:`construct` prints it (``str(candidate.program)``), or the program itself:
        it then has the price it was constructed with, to the last digit.
    fragment
        Matrix instruction of the device (``"mma.m16n8k16.f16.f32"``) that computes the tiles, which then must be whole
        fragments: ``register`` is the tile of its threads together (one fragment along the reduction).
    stages, split_k, raster
        What tiles do not say, and a name does (:class:`~roller.tile.RProgram`).
    warm
        GPU: inputs that whatever ran before left in the shared cache (activations). They come from there, where all
        tensors of the call fit it together; else from DRAM like the others.
    policy
        GPU: ``"library"`` for the kernel that a framework calls there, alone, with the time of its call;
        ``"library-graph"`` for the same replayed from a graph (:mod:`roller.templates.common.policy`). Beside ``tiles``
        (not a program) it says who calls them: the framework's kernel that is known to have these.

    Returns
    -------
    Estimate
        Predicted ``seconds``, ``bottleneck`` and ``terms``.

    Raises
    ------
    TileError
        Where a tile or a name is malformed, does not belong to the expression, or exceeds a capacity.

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
    from roller.construction.cached_inputs import warm_inputs
    from roller.construction.explicit_tiles import Mechanisms, priced_tiles
    from roller.construction.program_names import estimate_named, program_from_name

    expression, spec, how = expression_of(expr), target_of(device)[0], Mechanisms(stages, split_k, raster)
    kept = warm_inputs(expression, spec, warm)
    if policy is None and tiles is None:
        raise TileError("tiles: expected a mapping from layer to extents, got NoneType. Name tiles, or a policy.")
    if policy is not None and isinstance(tiles, (str, RProgram)):
        raise TileError("predict: expected a program, which is ours, or a policy, one of the two. Leave one out.")
    if tiles is None:
        from roller.construction.library import library_estimate

        if fragment is not None or how != Mechanisms():
            raise TileError("predict: a policy says fragment, stages, split_k and raster. Leave them out.")
        return library_estimate(expression, spec, str(policy), kept)
    if not isinstance(tiles, (str, RProgram)):
        if policy is not None:
            from roller.construction.library import called

            spec = called(expression, spec, policy)
        return priced_tiles(expression, spec, tiles, fragment, how, kept).estimate
    if fragment is not None or how != Mechanisms():
        raise TileError("predict: a program's name says fragment, stages, split_k and raster. Write them into it.")
    return estimate_named(program_from_name(expression, spec, str(tiles)), spec, kept)


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
        As for :func:`construct`. With ``top_k="auto"`` those of the best ten candidates are timed that the model
        cannot tell from its favourite (their predicted intervals overlap); where there is none, the favourite is built
        and checked, and nothing is timed.
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
    deterministic
        Time nothing: where the device is here the best prediction is built and checked, and the next one taken only
        where that fails; so every machine and rank that compiles for the same spec has the same program. Name a spec
        (``"v100"``, a YAML): ``device="cpu"`` is the spec that was detected or probed on this machine, and another
        machine has another.
    refine_s
        Seconds to search around the fastest candidate, for devices that are here: neighbouring tiles are built, checked
        and timed against it in turn. Worth it for small operators, where construction leaves something. Off by default.
    spec
        Beside a device that is here (``"cuda:0"``) the spec to construct for (a name, a YAML that was probed, or a
        DeviceSpec) instead of the shipped one of its architecture.
    prove
        Run the kernel for a device that is not here on the emulator, which needs g++: a candidate that is wrong, reads
        or writes out of bounds or lacks a barrier drops out, and the next takes its place. What was run is the
        candidate's ``proved``: ``"emulated"`` where that was all of it, some blocks of its grid where all take too
        long. A kernel is proved once; the cache knows.
    prove_s
        Seconds a kernel may be run for; 20 by default.
    remeasure
        Choose and time once more where the cache has the kernel already: it was measured on a machine that has
        changed, or was busy. A result that is doubtful does not replace one that is not.
    shapes
        Axes whose extents vary from call to call: ``{"ho": range(7, 65), "wo": range(7, 65)}``. The kernel is then a
        :class:`~roller.compiler.dynamic.symbolic_call.SymbolicRange`, on a processor for some ranges of the first
        dimension alone a :class:`~roller.compiler.dynamic.kernel.VaryingKernel`: few kernels cover the ranges. This
        processor or GPUs; no cache.

    Returns
    -------
    CompiledKernel
        Its ``doubt`` says why its time and the choice may be wrong, where other programs disturbed the timing to its
        end: it is taken from the cache by nobody, the next compilation measures again.

    Raises
    ------
    NoCandidateError
        Where no candidate survives; the message groups the reasons. It is not cached.
    LaunchError
        Where a device named as being here is not; the message says what is missing.
    RollerError
        Where a constant is no input of the expression, or its array does not fit; where ``refine_s`` is asked of a
        device that is not here, or beside ``deterministic``; where ``prove`` is asked of one that is here.
    EmulationError
        Where ``prove`` is asked for and there is no g++.
    """
    from roller.compiler.autotune import Selection
    from roller.compiler.autotune.proving import is_proved, seconds_of
    from roller.compiler.compiled_kernel import CompiledKernel
    from roller.runtime.inputs import checked_seed

    (spec, handle), expression = target_of(device, spec), expression_of(expr)
    chosen, values = constants_of(constants, expression, options_of(options, top_k))
    expression = chosen.meant(expression)
    seed, cache, remeasure = checked_seed(seed), flag(cache, "cache"), flag(remeasure, "remeasure")
    how = Selection(deterministic, 0.0 if refine_s is None else refine_s)
    here = is_this_machine(spec) or handle is not None
    if how.refine_s and not here:
        raise RollerError(f"refine_s: expected a device that is here to time on, got '{spec.name}'. Leave it out.")
    if shapes is not None:
        from roller.compiler.dynamic.compile import compile_varying

        beside = {"prove": prove, "prove_s": prove_s is not None, "remeasure": remeasure, "top_k": top_k is not None}
        return compile_varying(expression, spec, shapes, chosen, seed, how, here, beside, handle).holding(values)
    prove_for_s = seconds_of(prove, prove_s, here, spec.name) if prove is not False or prove_s is not None else 0.0
    if not cache or (handle is not None and handle.target.pretends):
        return _compile(expression, spec, chosen, seed, handle, how, prove_for_s).holding(values)
    from roller.runtime.cache import CacheKey, KernelCache
    from roller.runtime.cache_entry import entry_of, for_expression
    from roller.runtime.cache_holdings import forgetting

    fresh: list[CompiledKernel] = []

    def build() -> CacheEntry:
        fresh.append(_compile(expression, spec, chosen, seed, handle, how, prove_for_s))
        return entry_of(fresh[0].artifact, fresh[0].candidates)

    key = CacheKey.of(expression, spec.content_key, TEMPLATE_VERSION, chosen.identity(expression) | how.identity())
    # What runs here must have been checked here, and timed unless that was not wanted; elsewhere a prediction will
    # do, a measurement is welcome.
    kept = KernelCache()
    entry = kept.load_or_build(key, build, measured=here, anew=remeasure)
    if prove_for_s and not fresh and not is_proved(entry.artifact, prove_for_s):
        with forgetting(kept, key):
            entry = build()
        kept.store(key, entry)
    if fresh:
        return fresh[0].holding(values)
    found = for_expression(entry, expression)

    def candidates() -> tuple[Candidate, ...]:  # when they are looked at
        from roller.construction.constructor import Candidate
        from roller.perf.estimate import Estimate

        return tuple(
            Candidate(c.id, c.program, Estimate.from_dict(c.estimate), c.status, c.measured_s, c.reason, c.proved)
            for c in found.candidates
        )

    return CompiledKernel(found.artifact, candidates, here, cached_at=found.stored_at).holding(values)


def load(path: str | os.PathLike[str]) -> CompiledKernel:
    """Load a saved artifact; nothing is compiled and TVM's compiler is not needed.

    Raises
    ------
    ArtifactError
        Where the file is missing, damaged or of a newer format.
    """
    from roller.artifact import KernelArtifact
    from roller.compiler.compiled_kernel import CompiledKernel

    return CompiledKernel(KernelArtifact.load(path))


def lower(program: RProgram, expression: TensorExpr, spec: DeviceSpec) -> KernelArtifact:
    """Generate the kernel of one program; the target language of the spec picks the code generator."""
    made: KernelArtifact = target_for(spec).generation().lower_for(program, expression, spec)
    return made


def _compile(
    expression: TensorExpr,
    spec: DeviceSpec,
    options: ConstructOptions,
    seed: int,
    handle: DeviceHandle | None = None,
    how: Selection | None = None,
    prove_s: float = 0.0,
) -> CompiledKernel:
    """Construct; where the device is here build, check, and time what has to be; elsewhere lower the best one.

    ``prove_s``: seconds to prove it for, 0 for no proof.
    """
    from roller.compiler.autotune import Selection, first_lowered, proving
    from roller.compiler.autotune.priced_only import compiled_spec
    from roller.construction.constructor import construct_candidates, target_units

    spec = compiled_spec(expression, spec)
    candidates = construct_candidates(expression, spec, options)
    if handle is not None or is_this_machine(spec):
        return _compile_here(handle, expression, spec, candidates, options, seed, how or Selection())
    share = target_units(spec, options)

    def proved(candidate: Candidate, artifact: KernelArtifact) -> tuple[KernelArtifact, Verdict]:
        del candidate
        verdict = proving.prove(artifact, prove_s, lower=partial(lower, spec=share), seed=seed)
        return proving.noted(artifact, verdict, prove_s), verdict

    return first_lowered(
        expression, spec, candidates, lambda c: lower(c.program, expression, share), proved if prove_s else None
    )


def _compile_here(
    handle: DeviceHandle | None, expression: TensorExpr, spec: DeviceSpec, candidates: tuple[Candidate, ...],
    options: ConstructOptions, seed: int, how: Selection,
) -> CompiledKernel:  # fmt: skip
    """Choose among candidates on a device of this machine; without ``handle`` it is the processor."""
    from roller.backends.build import build
    from roller.compiler.autotune import TuningContext, choose
    from roller.compiler.compiled_kernel import CompiledKernel
    from roller.construction.constructor import target_units
    from roller.runtime import cpu_profile, profiler

    if handle is None:
        need_compiler("compiling for this processor")
    target_for(spec).prepare()
    share = target_units(spec, options)  # a kernel for a share of the units runs on that share
    pretends = handle is not None and handle.target.pretends

    def make(candidate: Candidate) -> KernelArtifact:
        artifact = replace(lower(candidate.program, expression, share), estimate=candidate.estimate.to_dict())
        return artifact if pretends else build(artifact)

    opened = profiler.Bench(expression, handle, seed) if handle else nullcontext(cpu_profile.Bench(expression, seed))
    with opened as bench:
        kernel = choose(TuningContext(expression, spec, options, make, bench.profile), candidates, how)
    launcher = handle.target.load if handle is not None and pretends else None
    return CompiledKernel(kernel.artifact, kernel.candidates, launcher=launcher)
