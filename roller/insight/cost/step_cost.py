"""The prices of all operators of a step on a device."""

from __future__ import annotations

from dataclasses import dataclass, field

from roller.core.cache_location import cache_folder
from roller.errors import RollerError, shown
from roller.hardware import DeviceSpec
from roller.insight.cost.compiled import apply_policy_to_trace
from roller.insight.cost.cpu import ProcessorPricer
from roller.insight.cost.kernel_prices import KernelPricer
from roller.insight.cost.library_settings import DEFAULT_SETTINGS, LibrarySettings
from roller.insight.cost.operator_price import POLICIES, Price, Pricer, check_policy_is_known, price_operators_and_save
from roller.insight.cost.traffic_saved_by_shared_cache import cached_byte_shares
from roller.insight.trace.trace import Operator, Trace

#: Host time of an eager operator that launches a kernel. Assumed: the time of a 3 GHz CPU; the argument ``host_op_s``
#: replaces it with a measured time.
HOST_OP_S = 6e-6

#: Policies that choose a step's kernels: PyTorch and its libraries (with generated kernels for the parts that the step
#: itself compiles), Roller, or PyTorch with the forward and the backward pass compiled as a whole.
STEP_POLICIES = (*POLICIES, "compiled")


@dataclass(frozen=True)
class PricedStep:
    """The last, steady step of a trace, with a price on a device for each operator."""

    trace: Trace
    spec: DeviceSpec
    policy: str
    operators: tuple[tuple[Operator, Price], ...] = field(repr=False)
    kernels: KernelPricer = field(repr=False)
    settings: LibrarySettings = DEFAULT_SETTINGS


def pricer_with_disk_cache(
    spec: DeviceSpec, policy: str = "library", kernels: KernelPricer | None = None,
    settings: LibrarySettings = DEFAULT_SETTINGS,
) -> Pricer:  # fmt: skip
    """Return a pricer that assumes the device's sustained clock and uses the disk cache."""
    sustained = spec.sustained
    kernels = kernels or KernelPricer(sustained, policy, cache_folder() / "prices")
    return Pricer(sustained, policy, kernels, settings.tf32, settings.release)


def price_step(
    trace: Trace, spec: DeviceSpec, policy: str = "library", *, kernels: KernelPricer | None = None,
    tf32: bool | None = None,
) -> PricedStep:  # fmt: skip
    """Price the operators of a trace's last step.

    Parameters
    ----------
    trace
        Trace of a step, made for a device of the same kind.
    spec
        A GPU or a CPU.
    policy
        ``"library"``: kernels of PyTorch and its libraries; parts of the step under ``torch.compile`` run in generated
        kernels. ``"compiled"``: the forward and the backward pass are compiled as a whole. ``"roller"``: each operator
        runs its fastest constructed program.
    kernels
        Earlier prices for the same device (``spec.sustained``) and policy; by default, prices from the disk cache.
    tf32
        Whether float32 convolutions and products may be computed in TF32, if the device supports it; ``None``: as
        PyTorch's switches were set in the trace.

    Returns
    -------
    PricedStep
        The operators of the step in order, each with its price in seconds.

    Raises
    ------
    RollerError
        If ``policy`` is unknown, the device is neither a GPU nor a CPU, or an option does not fit the policy, the
        device or the PyTorch release.
    """
    check_policy_is_known(policy, STEP_POLICIES)
    if tf32 is not None and not isinstance(tf32, bool):
        raise RollerError(f"forecast: tf32: expected True, False or None, got {shown(tf32)}. Name one of them.")
    if spec.traits.discrete and not spec.traits.blocks:
        raise RollerError(
            f"forecast: device: expected a GPU or a CPU, got '{spec.name}'. What a framework's libraries and its "
            f"allocator take elsewhere is not described yet; name one of those."
        )
    if tf32 is not None and (policy == "roller" or not spec.traits.blocks):
        got = "policy roller, whose programs" if policy == "roller" else f"'{spec.name}', whose kernels"
        raise RollerError(f"forecast: tf32: expected none with {got} round nothing to TF32. Leave it out.")
    if policy == "compiled" and not spec.traits.blocks:
        raise RollerError(
            f"forecast: policy: expected library or roller on '{spec.name}', got compiled: what PyTorch's compiler "
            f"generates for a processor is not described. Name a GPU, or another policy."
        )
    trace = apply_policy_to_trace(trace, policy, on_gpu=spec.traits.blocks)
    if trace.options.get("is_compiled") and not LibrarySettings.of(trace.options).release.has_compiler:
        raise RollerError(
            f"forecast: torch_release: expected 2.0 or newer for a compiled step, got "
            f"{trace.options['torch_release']}, which has no torch.compile. Leave it out, or compile nothing."
        )
    settings = LibrarySettings.of(trace.options, tf32)
    pricer = pricer_with_disk_cache(spec, "library" if policy == "compiled" else policy, kernels, settings)
    if spec.traits.discrete or policy == "roller":
        steady = trace.steady()
        prices = price_operators_and_save(pricer, steady, cached_byte_shares(steady, spec, trace.events))
    else:  # a CPU's prices depend on the state of its caches in this step, so they are not saved to disk
        prices = ProcessorPricer(spec.sustained).price_last_step(trace)
    operators = tuple(zip(trace.steady(), prices, strict=True))
    return PricedStep(trace, spec, policy, operators, pricer.kernels, settings)
