"""Models with dynamic sizes: read at sample sizes, generalized, and compiled once for the whole range."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from roller.compile_arguments import spec_and_local_device
from roller.compiler.dynamic.compile_kernels_for_all_sizes import SymbolicKernels, compile_symbolic
from roller.compiler.dynamic.dynamic_range import refuse_unsupported_options
from roller.compiler.dynamic.dynamic_size_box import SizeBox, Sizes
from roller.compiler.dynamic.range_prover import RangeProver
from roller.compiler.dynamic.symbolic_programs import SymbolicExpr
from roller.core.anti_unification import MismatchError, general
from roller.core.formula_fitting import FormulaFitter
from roller.errors import ModelError, NoCandidateError, RollerError, counted, did_you_mean, shown
from roller.hardware import DeviceSpec
from roller.hardware.detect_cpu_spec import check_core_count, is_this_machine
from roller.models.batch.executors import ForkedWorkers
from roller.models.batch.kernel_jobs import BatchSettings, BatchTarget, construct_jobs, rotating_constant_bytes
from roller.models.batch.kernel_predictions import KernelPredictor
from roller.models.batch.progress import OnProgress, Progress, ignore_progress, progress_callback
from roller.models.compile_kernels_without_sizes import KernelsWithoutSizes, as_range_kernels
from roller.models.graph.choose_blocked_channel_values import ChosenLayouts, apply_layouts, choose_layouts
from roller.models.graph.memory_plan import plan_memory
from roller.models.graph.order_steps_for_weight_reuse import bytes_between_reads
from roller.models.onnx.constants_cut_from_largest import copy_corners_of_constants
from roller.models.onnx.folded_nodes import FoldedNode, record_folded_nodes
from roller.models.onnx.read_at_sample_sizes import SampledModel, is_prefix, read_at_sample_sizes, sizes_near_ends
from roller.models.options import ModelOptions
from roller.models.range_cache import RangeCache
from roller.runtime.cache import KernelCache
from roller.runtime.session.start_range_session import make_range_kernel, output_dimensions, start_range_session
from roller.templates.common.options import ConstructOptions
from roller_runtime.core.validation import is_integer, validate_threads
from roller_runtime.plan.execution_plan import Plan
from roller_runtime.plan.plan_json import plan_to_dict
from roller_runtime.plan.program_steps import KernelSource, Program, iterate_kernel_runs
from roller_runtime.session.model_digest import ModelDigest, digest_of_model, unknown_digest
from roller_runtime.session.range_plan import RangePlan, variant_key
from roller_runtime.session.range_session import RangeSession

if TYPE_CHECKING:
    import onnx

#: Function that returns the program of a model for fixed input shapes.
ProgramAt: TypeAlias = Callable[[Mapping[str, Sequence[int]]], Program]
_LOG = logging.getLogger("roller")
#: Largest size: fitted formulas reach its third power, which must fit into 64 bits.
LARGEST_SIZE = 1 << 20
_HOW = (
    "Write (name, smallest, largest) or (name, range(...)), e.g. "
    "shapes={'tokens': (('batch', 1, 8), ('sequence', 1, 512))}."
)


@dataclass(frozen=True)
class SizeRanges:
    """Ranges of the dynamic sizes, and each input's dimensions as numbers or size names."""

    box: SizeBox  #: The sizes, divided by their steps
    inputs: Mapping[str, tuple[int | str, ...]]
    steps: Mapping[str, int] = field(default_factory=dict)  #: Of sizes that are multiples of a number above 1

    @property
    def spelled_out(self) -> dict[str, tuple[Any, ...]]:
        """The dimensions of all inputs, with the ends and the step of each size: equal for equal ranges."""
        ends = {n: (n, low, high, self.steps.get(n, 1)) for n, (low, high) in self.box.ends.items()}
        return {n: tuple(ends.get(d, d) if isinstance(d, str) else d for d in dims) for n, dims in self.inputs.items()}

    def at(self, sizes: Sizes) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the inputs at the given sizes."""
        real = {n: x * self.steps.get(n, 1) for n, x in sizes.items()}
        return {n: tuple(real[d] if isinstance(d, str) else d for d in dims) for n, dims in self.inputs.items()}


def parse_ranges(
    model: str | Path | bytes | onnx.ModelProto, shapes: Mapping[str, Any], base_dir: str | Path | None = None
) -> SizeRanges:
    """Return the ranges that ``shapes`` declares, validated against the model's inputs."""
    from roller.models.onnx.load_model_proto import load_onnx
    from roller.models.onnx.onnx_types import declared_shape

    loaded = load_onnx(model, base_dir)
    declared = {i.name: declared_shape(i.type) for i in loaded.graph.input if i.name not in loaded.initialisers}
    ends: dict[str, tuple[int, int, int]] = {}
    inputs: dict[str, tuple[int | str, ...]] = {}
    for name, dims in shapes.items():
        if name not in declared:
            owner = next((n for n, shape in declared.items() if shape is not None and name in shape), None)
            hint = did_you_mean(name, declared) or f". Inputs are: {', '.join(sorted(declared))}."
            hint = hint if owner is None else f"; it is a dimension of '{owner}'. {_HOW}"
            raise ModelError(f"shapes: {loaded.name} has no input '{name}'{hint}")
        if not isinstance(dims, (tuple, list)):
            raise ModelError(f"shapes: expected the dimensions of '{name}' in their order, got {shown(dims)}. {_HOW}")
        meant = declared[name]
        if meant is not None and len(meant) != len(dims):
            raise ModelError(
                f"shapes: expected {counted(len(meant), 'dimension')} of '{name}', which is declared as "
                f"{shown(list(meant))}, got {len(dims)}: {shown(dims)}. Name each."
            )
        inputs[name] = tuple(_parse_dimension(name, d, ends) for d in dims)
    fixed = {n: low for n, (low, high, _) in ends.items() if low == high}
    for name, found in declared.items():
        known = inputs.get(name, found)
        if known is None or not all(isinstance(d, int) or d in ends for d in known):
            raise ModelError(f"shapes: expected the dimensions of '{name}', whose shape is {shown(known)}. {_HOW}")
        inputs[name] = tuple(d if isinstance(d, int) else fixed.get(str(d), str(d)) for d in known)
    free = {n: e for n, e in ends.items() if n not in fixed}
    return SizeRanges(
        SizeBox({n: (low // step, high // step) for n, (low, high, step) in free.items()}),
        {n: inputs[n] for n in declared}, {n: step for n, (_, _, step) in free.items() if step > 1},
    )  # fmt: skip


def _parse_dimension(name: str, dim: Any, ends: dict[str, tuple[int, int, int]]) -> int | str:
    """Return a dimension as a number or a size's name; store the size's smallest and largest value and its step."""
    if is_integer(dim) and dim >= 0:
        return int(dim)
    if isinstance(dim, str) and dim in ends:
        return dim
    size, *pair = dim if isinstance(dim, (tuple, list)) and dim else (None,)
    step = 1
    if len(pair) == 1 and isinstance(pair[0], range) and pair[0] and pair[0].step > 0:
        pair, step = [pair[0][0], pair[0][-1]], pair[0].step
    if not isinstance(size, str) or not size or len(pair) != 2 or not all(map(is_integer, pair)):
        raise ModelError(f"shapes: '{name}': expected a number or a range with its name, got {shown(dim)}. {_HOW}")
    low, high = map(int, pair)
    if not 1 <= low <= high:
        raise ModelError(
            f"shapes: '{name}': expected a range of sizes of at least 1, the smallest first, got {shown(dim)}. {_HOW}"
        )
    if low % step:
        raise ModelError(
            f"shapes: '{name}': expected multiples of the step {step}, got {shown(dim)}. Write e.g. "
            f"('{size}', range({-(-low // step) * step}, {high + 1}, {step}))."
        )
    if high > LARGEST_SIZE:
        raise ModelError(f"shapes: '{name}': expected sizes of at most {LARGEST_SIZE}, got {shown(dim)}.")
    step = 1 if low == high else step
    if ends.setdefault(size, (low, high, step)) != (low, high, step):
        first, other = (range(a, b + 1, c) for a, b, c in (ends[size], (low, high, step)))
        raise ModelError(f"shapes: '{size}': expected one range, got {first} and {other}.")
    return size


def compile_for_ranges(
    model: str | Path | bytes | onnx.ModelProto,
    device: str | DeviceSpec,
    shapes: Mapping[str, Any],
    how: ModelOptions,
    base_dir: str | Path | None,
    beside: Mapping[str, bool],
    program_at: ProgramAt,
) -> RangeSession:
    """Validate the arguments of :func:`roller.compile_model` and compile a model whose ``shapes`` contain ranges."""
    from roller.models.onnx.load_model_proto import load_onnx

    whole, spec, settings = processor_for_ranges(device, how, "shapes", "Compile for fixed shapes.")
    refuse_unsupported_options(beside)
    ranges = parse_ranges(model, shapes, base_dir)
    if not ranges.box.ends:
        raise ModelError(f"shapes: expected a range of several sizes, got {shown(shapes)}. Compile for this shape.")
    options, timed = settings.options, not how.deterministic
    cache = RangeCache(model, ranges.spelled_out, base_dir, spec, (options, timed)) if how.cache else None
    known = cache.load() if cache is not None else None
    if known is not None:
        return known
    with progress_callback(how.progress) as show:
        session = generalise_and_compile(
            load_onnx(model, base_dir).name, lambda sizes: program_at(ranges.at(sizes)), ranges, spec, options,
            timed=timed, model_digest=digest_of_model(model),
            without_sizes=KernelsWithoutSizes(whole, settings, KernelCache() if how.cache else None), progress=show,
        )  # fmt: skip
    if cache is not None:
        cache.store(session)
    return session


def processor_for_ranges(
    device: str | DeviceSpec, how: ModelOptions, where: str, remedy: str
) -> tuple[DeviceSpec, DeviceSpec, BatchSettings]:
    """Return this machine's processor, its share for the threads of a call, and the settings for these threads."""
    spec, handle = spec_and_local_device(device)
    if handle is not None or not is_this_machine(spec):
        raise RollerError(f"{where}: expected this machine's processor (device='cpu'), got {spec.name}. {remedy}")
    check_core_count(spec)
    whole, settings = spec.emitted.sustained, how.settings()
    if how.threads is None:
        return whole, whole, settings
    threads = validate_threads(how.threads, discrete=False)
    return whole, whole.share(threads), settings.with_threads(threads)


def generalise_and_compile(
    name: str,
    program_at: Callable[[Sizes], Program],
    ranges: SizeRanges,
    spec: DeviceSpec,
    options: ConstructOptions,
    timed: bool = True,
    model_digest: ModelDigest = unknown_digest,
    without_sizes: KernelsWithoutSizes | None = None,
    progress: OnProgress = ignore_progress,
) -> RangeSession:
    """Compile a model for all sizes of its ranges on this machine's processor.

    ``program_at`` reads the model at sizes, which are divided by their steps. ``without_sizes`` compiles the kernels
    that depend on no size; by default, the search for ranges does.
    """
    read: dict[tuple[int, ...], Program] = {}
    folded: dict[tuple[int, ...], dict[str, FoldedNode]] = {}

    def plain(sizes: Sizes) -> Program:
        key = tuple(sizes[n] for n in ranges.box.ends)
        if key not in read:  # layouts and steps are determined at the same sizes
            with record_folded_nodes() as folded[key]:
                read[key] = program_at(sizes)
        return read[key]

    def folded_at(sizes: Sizes) -> dict[str, FoldedNode]:
        return folded[tuple(sizes[n] for n in ranges.box.ends)]

    def made(layouts: ChosenLayouts) -> RangeSession:
        found = read_at_sample_sizes(ranges.box, lambda p: apply_layouts(plain(p), spec, layouts), folded_at)
        found = copy_corners_of_constants(found)
        return _compile_range_session(found, ranges, spec, options, timed, model_digest, without_sizes, progress)

    box = ranges.box.box_for_reading_models
    middle, others = plain(box.middle), [plain(p) for p in sizes_near_ends(box)]
    layouts = _choose_layouts(middle, spec, BatchSettings(options), others)
    if layouts.written:
        try:
            return made(layouts)
        except (MismatchError, KeyError, NoCandidateError) as err:
            _LOG.info("%s: shapes: no channels in blocks, which some sizes do not allow: %s", name, err)
    try:
        return made(ChosenLayouts(middle))
    except (MismatchError, KeyError) as err:
        raise ModelError(
            f"{name}: shapes: expected the same steps for all sizes, got others for some ({err}). Compile it "
            "for fixed shapes, or ranges without these sizes."
        ) from err


def _compile_range_session(
    found: SampledModel, ranges: SizeRanges, spec: DeviceSpec, options: ConstructOptions, timed: bool,
    model_digest: ModelDigest,
    without_sizes: KernelsWithoutSizes | None, progress: OnProgress,
) -> RangeSession:  # fmt: skip
    """Generalize the programs for the sample sizes and compile their kernels."""
    points, largest = found.points, found.largest
    sources = _symbolic_expression_by_kernel(found.programs, points, options)
    _check_same_constants([*found.programs, largest])
    whole = plan_memory(largest)
    # All sizes share a plan's constants; its kernel expressions are not part of the generalized data.
    fixed = [plan_memory(p, within=whole) for p in found.programs]
    described = general([_plan_json_without_predictions(f) for f in fixed], FormulaFitter(points))
    passing = (
        {key: rotating_constant_bytes(spec, n) for key, n in bytes_between_reads(largest).items()} if timed else None
    )
    alone = [key for key, (expr, _) in sources.items() if without_sizes is not None and not expr.general.formulas]
    artifacts = {} if without_sizes is None else without_sizes.compile(found.programs[0], alone)
    sources = {key: source for key, source in sources.items() if key not in artifacts}
    kernels = compile_symbolic(
        sources, points, found.box, spec, options, passing_bytes=passing,
        progress=lambda *event: progress(Progress(*event)),
        uses=Counter(run.kernel for run in iterate_kernel_runs(largest.steps)),
    )  # fmt: skip
    runs = as_range_kernels(artifacts) | {
        key: tuple(make_range_kernel(partial(k.artifact_at, n), points) for n in range(len(k.priced)))
        for key, k in kernels.items()
    }
    ends, box = (*whole.program.inputs, *whole.program.outputs), SizeBox(ranges.box.ends, found.box.derived)
    shapes = {name: [p.values[name].shape for p in found.programs] for name in whole.program.outputs}
    prover = RangeProver(kernels, box, {key: float(a.estimate["seconds"]) for key, a in artifacts.items()})
    made = RangePlan(described, whole.program.name, {n: whole.program.values[n].dtype for n in ends}, whole.arena_bytes,
                     dict(ranges.box.ends), dict(found.box.derived), dict(ranges.inputs),
                     output_dimensions(shapes, points, ranges.box.ends, ranges.steps), runs, prover,
                     dict(ranges.steps))  # fmt: skip
    several = {key: [k.artifact for k in found.kernels] for key, found in kernels.items()}
    several |= {key: [artifact] for key, artifact in artifacts.items()}
    by_variant = {variant_key(key, n): a for key, found in several.items() for n, a in enumerate(found)}
    return start_range_session(made, whole, cores=spec.units, doubt=_timing_disturbance(kernels), artifacts=by_variant,
                        model_digest=model_digest)  # fmt: skip


def _timing_disturbance(kernels: Mapping[str, SymbolicKernels]) -> str:
    """Return the first disturbance of a timing and the number of affected kernels as text, empty if there was none."""
    several = [k.doubt for k in kernels.values() if k.doubt]
    return f"{several[0]} ({len(several)} of {counted(len(kernels), 'kernel')})" if several else ""


def _choose_layouts(
    program: Program, spec: DeviceSpec, settings: BatchSettings, others: Sequence[Program]
) -> ChosenLayouts:
    """Return the layouts predicted to be fastest for ``program``; all other sizes share them."""
    target, worker_pool = BatchTarget(spec, here=True), ForkedWorkers()
    return choose_layouts(
        program,
        spec,
        KernelPredictor(program.kernels, target, settings, lambda j: construct_jobs(j, target, worker_pool)[0], None),
        others,
    )


def _symbolic_expression_by_kernel(
    programs: Sequence[Program], points: Sequence[Sizes], options: ConstructOptions
) -> dict[str, tuple[SymbolicExpr, tuple[str, ...]]]:
    """Return each kernel's symbolic expression, and the names of its constants of fixed shape."""
    found = {}
    if any(set(p.kernels) != set(programs[0].kernels) for p in programs):
        raise MismatchError("kernels differ")
    for key in programs[0].kernels:
        several: list[KernelSource] = [p.kernels[key] for p in programs]
        expr = SymbolicExpr.of([options.meant(s.expression) for s in several], points)
        shapes = [{t.name: t.shape for t in s.expression.inputs} for s in several]
        constant = tuple(n for n in several[0].constants if all(x.get(n) == shapes[0][n] for x in shapes))
        found[key] = expr, constant
    return found


def _check_same_constants(programs: Sequence[Program]) -> None:
    """Raise an error if a constant depends on sizes, unless it is a prefix of that for the largest sizes."""
    largest = programs[-1].constants
    for program in programs[:-1]:
        if set(program.constants) != set(largest):
            raise MismatchError("constants differ")
        for name, array in program.constants.items():
            if array.dtype != largest[name].dtype or not is_prefix(largest[name], array):
                raise MismatchError(f"the constant '{name}' is computed from sizes")


def _plan_json_without_predictions(made: Plan) -> dict[str, Any]:
    data = plan_to_dict(made)
    return {**data, "predicted_s": {}}
