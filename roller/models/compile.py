"""All stages of compiling a model: read -> fold -> partition -> layouts -> kernels -> memory plan -> session.

Unsupported models are refused before the first kernel is compiled. Compiling from the cache loads neither TVM nor the
constructor.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from roller.artifact import KernelArtifact
from roller.compile_arguments import spec_and_local_device
from roller.errors import RollerWarning, counted
from roller.hardware import DeviceSpec
from roller.hardware.detect_cpu_spec import check_core_count, is_this_machine
from roller.models.argument_validation import (
    has_dynamic_shapes,
    validate_base_dir,
    validate_batch,
    validate_fallback,
    validate_shapes,
    validate_values,
)
from roller.models.batch.batch_result import BatchResult
from roller.models.batch.compile_kernels import compile_kernels
from roller.models.batch.executors import Workers, choose_batch_workers
from roller.models.batch.kernel_jobs import BatchSettings, BatchTarget, construct_jobs
from roller.models.batch.kernel_predictions import KernelPredictor
from roller.models.batch.launch_forecast import forecast_launches
from roller.models.batch.progress import OnProgress, ignore_progress, progress_callback, report_count_on_interrupt
from roller.models.compiled_model import CompiledModel, count_kernel_runs
from roller.models.graph.choose_blocked_channel_values import ChosenLayouts, choose_layouts
from roller.models.graph.coschedule import coschedule_program
from roller.models.graph.memory_plan import plan_memory
from roller.models.graph.order_steps_for_weight_reuse import bytes_between_reads
from roller.models.onnx.program_cache import CachedProgramFile
from roller.models.options import TOP_K, ModelOptions
from roller.runtime.cache import KernelCache
from roller.targets import target_for
from roller.templates.common.options import ConstructOptions
from roller_runtime.core.validation import validate_threads
from roller_runtime.plan.program_steps import Program
from roller_runtime.session.cpu_session import Session
from roller_runtime.session.fallback_runtime import require_runtimes
from roller_runtime.session.model_digest import digest_of_model
from roller_runtime.session.packed_constants import flatten_lanes

if TYPE_CHECKING:
    import onnx

    from roller.models.graph.model_graph import Graph
    from roller.models.session.gpu_session import GpuSession
    from roller_runtime.session.range_session import RangeSession


def compile_model(
    model: str | Path | bytes | onnx.ModelProto,
    device: str | DeviceSpec = "cpu",
    *,
    batch: int | None = None,
    shapes: Mapping[str, Sequence[Any]] | None = None,
    values: Mapping[str, Any] | None = None,
    base_dir: str | Path | None = None,
    top_k: int | Literal["auto"] = TOP_K,
    options: ConstructOptions | None = None,
    budget_s: float | None = None,
    fallback: str | None = None,
    executor: concurrent.futures.Executor | None = None,
    scheduler: Any = None,
    workers: int | None = None,
    threads: int | None = None,
    cache: bool = True,
    progress: OnProgress | bool | None = None,
    deterministic: bool = False,
    side_by_side: bool = True,
    prove: bool = False,
    prove_s: float | None = None,
    remeasure: bool = False,
) -> Session | RangeSession | GpuSession | CompiledModel:
    """Compile an ONNX model; each distinct kernel is compiled once or taken from the cache.

    Parameters
    ----------
    model
        Path (``.onnx``; TensorFlow's ``.pb`` if tf2onnx is installed), bytes, or a ModelProto.
    device
        ``"cpu"`` for this machine's processor, a device of this machine (``"cuda:0"``), or the name of another device.
        Kernels for another device are lowered, built if a toolchain is installed, and never run.
    batch, shapes, values
        Batch size, shapes by input name, and inputs whose values are known at compile time; see
        :func:`roller.models.onnx.read_model.read_onnx_graph`. On this machine's processor, a dimension may be a range,
        ``("sequence", 1, 512)`` or ``("sequence", range(1, 513))``: each call then chooses the size, and the session
        compiles nothing further. The sizes of ``range(32, 641, 32)`` are its multiples of 32. A symbol with the same
        name in another input denotes the same size. With ranges, only ``base_dir``, ``options``, ``threads``,
        ``cache``, ``deterministic`` and ``progress`` take effect in addition.
    base_dir
        Folder of external weights, for a model given as bytes or as a ModelProto; by default, the folder of the path.
    top_k, options, deterministic
        See :func:`roller.compile`; they apply to every kernel.
    budget_s
        Time limit for compiling, in seconds. Each kernel's best prediction is built and checked, however long that
        takes; further candidates are tried while time remains, starting with the kernel that has the largest share of
        the model's predicted time.
    fallback
        ``"onnxruntime"`` runs nodes that cannot be compiled in ONNX Runtime, including nodes whose shape is unknown
        before they run. By default, such nodes raise an error that lists them all.
    executor
        A ``concurrent.futures.Executor`` that builds kernels. Timing stays on this machine, one kernel at a time.
    scheduler
        Address of a Dask scheduler (``"tcp://host:8786"``) or a ``distributed.Client``. All its workers build kernels;
        workers with the resource ``gpu`` (or ``cpu_slot``, for processors like this one) also check and time them.
    workers
        Number of build processes if neither an executor nor a scheduler is given; by default the number of processors.
    threads
        Number of threads per call, including the calling thread, if the device is a processor: kernels are constructed
        for that many cores, and a session uses no more threads. By default, all cores are used. Use ``1`` if many
        threads call at the same time or the machine has other work. See also :func:`roller.load_model`.
    cache
        Whether kernels are read from the cache and written to it.
    progress
        ``True`` for a bar on standard error, ``False`` for none, ``None`` for a bar if standard error is a terminal; or
        a function that takes :class:`roller.models.batch.progress.Progress`.
    side_by_side
        Whether small independent kernels may run at the same time, each on a share of the device, if that is predicted
        to be faster.
    prove
        Whether to run kernels for an absent GPU on the emulator (which needs g++) during compilation, those with the
        largest share of predicted time first. A wrong candidate is replaced; each artifact records which parts were not
        proven correct. By default, these proofs run when the model is saved.
    prove_s
        Time limit, in seconds, for proving all kernels together during compilation; by default 120 if ``prove`` is set.
        0 disables proofs, also when the model is saved.
    remeasure
        See :func:`roller.compile`; it applies to every kernel.

    Returns
    -------
    Session, RangeSession, GpuSession or CompiledModel
        A session if the device belongs to this machine (its processor or a GPU); otherwise a model whose
        :meth:`CompiledModel.save` writes a folder for a machine that has the device.

    Raises
    ------
    ModelError
        If the model is damaged or malicious, or has nodes that cannot be compiled; no kernel is compiled then.
    NoCandidateError
        If any kernel has no working candidate; the message gives the reasons, and all other kernels are in the cache.
    """
    if has_dynamic_shapes(shapes):
        from roller.models.compile_for_ranges import compile_for_ranges

        beside = {
            "batch": batch, "values": values or None, "fallback": fallback, "budget_s": budget_s, "executor": executor,
            "scheduler": scheduler, "workers": workers, "prove": prove or None, "prove_s": prove_s,
            "remeasure": remeasure or None, "top_k": None if top_k == TOP_K else top_k,
        }  # fmt: skip
        how = ModelOptions(
            options=options, threads=threads, deterministic=deterministic, cache=cache, progress=progress
        )
        asked, folder = {name: value is not None for name, value in beside.items()}, validate_base_dir(base_dir)

        def program_at(fixed: Mapping[str, Sequence[int]]) -> Program:
            return partition_graph(read_folded_graph(model, shapes=fixed, base_dir=folder, low_bit_rows=0))

        return compile_for_ranges(model, device, shapes or {}, how, folder, asked, program_at)
    digest = digest_of_model(model)
    batch, shapes, values = validate_batch(batch), validate_shapes(shapes) or None, validate_values(values) or None
    base_dir, fallback = validate_base_dir(base_dir), validate_fallback(fallback)

    def program() -> Program:
        def make() -> Program:
            graph = read_folded_graph(
                model, batch=batch, shapes=shapes, values=values, base_dir=base_dir, fallback=fallback
            )
            return partition_graph(graph, fallback=fallback)

        # The warning about fallback nodes is repeated on every compile; caller-supplied values are not cached.
        return load_or_partition_program(
            make, model, batch, shapes, base_dir, noted=cache and fallback is None and not values
        )

    how = ModelOptions(
        top_k, options, budget_s, executor, scheduler, workers, cache, progress, deterministic, side_by_side, prove,
        prove_s, remeasure, threads,
    )  # fmt: skip
    made = replace(compile_for_device(program, device, how), model_digest=digest)
    return made.session(consume=True) if made.runs_here else made


def read_folded_graph(
    model: str | Path | bytes | onnx.ModelProto,
    *,
    batch: int | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    values: Mapping[str, Any] | None = None,
    base_dir: str | Path | None = None,
    fallback: str | None = None,
    low_bit_rows: int | None = None,
) -> Graph:
    """Read a model; return its graph with constant subgraphs folded."""
    from roller.models.onnx import read_model, simplify_graph

    lenient = fallback is not None
    return simplify_graph.fold_graph(
        read_model.read_onnx_graph(
            model,
            batch=batch,
            shapes=shapes,
            values=values,
            base_dir=base_dir,
            lenient=lenient,
            low_bit_rows=low_bit_rows,
        )
    )


def load_or_partition_program(
    make: Callable[[], Program],
    model: str | Path | bytes | onnx.ModelProto,
    batch: int | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    base_dir: str | Path | None = None,
    *,
    noted: bool = True,
) -> Program:
    """Return the program from the cache if ``noted`` and present, otherwise from ``make``."""
    note = CachedProgramFile(KernelCache().folder, model, batch, shapes, base_dir)
    return note.load_or_make_and_cache(make) if noted else make()


def partition_graph(graph: Graph, *, fallback: str | None = None) -> Program:
    """Partition a graph into steps and kernels; one :class:`RollerWarning` lists the nodes left to ``fallback``."""
    from roller.models.onnx.partition_graph import partition_with_report

    report = partition_with_report(graph, fallback=fallback)
    if report.outside:
        nodes = ", ".join(f"'{node}' ({why})" for node, why in report.outside.items())
        warnings.warn(f"{graph.name}: nodes that {fallback} computes: {nodes}.", RollerWarning, stacklevel=2)
    return report.program


def compile_for_device(
    program: Program | Callable[[], Program], device: str | DeviceSpec = "cpu", how: ModelOptions | None = None
) -> CompiledModel:
    """Compile ``program``; if it is a function, it is called only after the other arguments are validated."""
    how = how or ModelOptions()
    settings = how.settings()
    target, worker_pool = resolve_target_and_workers(device, how.executor, how.scheduler, how.workers)
    if how.threads is not None:
        settings = settings.with_threads(validate_threads(how.threads, target.spec.traits.discrete))
    kept = KernelCache() if how.cache else None
    try:
        with progress_callback(how.progress) as show, report_count_on_interrupt(show, kept=kept is not None) as details:
            taken = program() if callable(program) else program
            if target.here:
                require_runtimes(flatten_lanes(taken.steps))
            made = compile_program(
                taken, target, settings, worker_pool, kept, progress=details, side_by_side=how.side_by_side
            )
    finally:
        worker_pool.close()
    if target.checks_kernels:
        return made

    def again(prove_s: float) -> CompiledModel:
        with (
            progress_callback(how.progress) as show,
            contextlib.closing(resolve_target_and_workers(device, None, None, how.workers)[1]) as worker_pool,
        ):
            return compile_program(
                taken, target, replace(settings, prove_s=prove_s), worker_pool, kept, progress=show,
                side_by_side=how.side_by_side, given=made.artifacts,
            )  # fmt: skip

    return replace(made, unproved_s=how.prove_limit_on_save_s, again=again)


def resolve_target_and_workers(
    device: str | DeviceSpec,
    executor: concurrent.futures.Executor | None = None,
    scheduler: Any = None,
    workers: int | None = None,
) -> tuple[BatchTarget, Workers]:
    """Return the compilation target and its workers."""
    spec, handle = spec_and_local_device(device)
    here = handle is not None or is_this_machine(spec)
    if here and handle is None:
        check_core_count(spec)
    worker_pool = choose_batch_workers(executor, scheduler, workers, spec.traits.resource)
    # Kernels for an absent GPU are checked and timed on a scheduler's GPU worker, which verifies that it has this GPU.
    elsewhere = not here and spec.traits.discrete and worker_pool.benches > 0
    remote = target_for(spec).first_device if elsewhere else ""
    # A model keeps the device busy for seconds, so the sustained clock applies.
    return BatchTarget(
        spec.emitted.sustained, here, handle.text if handle is not None else remote, bool(remote)
    ), worker_pool


def compile_program(
    program: Program,
    target: BatchTarget,
    settings: BatchSettings,
    worker_pool: Workers,
    cache: KernelCache | None,
    *,
    progress: OnProgress = ignore_progress,
    side_by_side: bool = True,
    given: Mapping[str, KernelArtifact] | None = None,
    blocks: bool = True,
) -> CompiledModel:
    """Choose layouts, schedule small kernels concurrently, compile all kernels and plan memory."""
    seconds, before = dict[str, float](), time.monotonic()
    spec = target.spec if settings.threads is None else target.spec.share(settings.threads)
    predictions = KernelPredictor(
        program.kernels, target, settings, lambda jobs: construct_jobs(jobs, target, worker_pool)[0], cache
    )
    declared = program
    laid = choose_layouts(program, spec, predictions) if blocks else ChosenLayouts(program)
    program = laid.program
    seconds["layouts"], before = time.monotonic() - before, time.monotonic()
    if side_by_side:
        program = coschedule_program(program, spec, predictions).program
        seconds["coschedule"], before = time.monotonic() - before, time.monotonic()
    batch = compile_kernels(
        program.kernels, target, settings, uses=count_kernel_runs(program.steps),
        passing=bytes_between_reads(program), worker_pool=worker_pool,
        cache=cache, progress=progress, constructed=predictions.constructed, given=given,
    )  # fmt: skip
    # Only kernels that layouts or sections created failed: compile again without channel blocks and sections.
    if batch.failures and not batch.failures.keys() & declared.kernels.keys():
        warnings.warn(_rewriting_failed_message(batch, program.name, target.spec.name), RollerWarning, stacklevel=2)
        return compile_program(
            declared, target, settings, worker_pool, cache, progress=progress,
            side_by_side=side_by_side and bool(batch.failures.keys() & laid.program.kernels.keys()),
            given={**(given or {}), **batch.artifacts},
            blocks=blocks and not batch.failures.keys() & laid.program.kernels.keys(),
        )  # fmt: skip
    batch.raise_if_any_failed(program.name, target.spec.name)
    seconds["kernels"], before = time.monotonic() - before, time.monotonic()
    predicted = {key: float(a.estimate["seconds"]) for key, a in batch.artifacts.items()}
    made = plan_memory(program, predicted_s=predicted, value_align_bytes=spec.traits.value_align_bytes)
    launches = forecast_launches(program.steps, batch.artifacts, spec) if spec.traits.blocks else None
    seconds["plan"] = time.monotonic() - before
    return CompiledModel(made, batch.artifacts, spec, target, batch, seconds, str(laid), launches)


def _rewriting_failed_message(batch: BatchResult, name: str, device: str) -> str:
    """Return the warning about failed kernels that use channel blocks or sections."""
    return (
        f"{name} on {device}: {counted(len(batch.failures), 'kernel')} in blocks of channels or in sections failed: "
        f"{batch.failure_reasons_text}. The model is compiled without them."
    )
