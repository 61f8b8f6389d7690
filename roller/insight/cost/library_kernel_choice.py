"""Choice of the kernel that a library runs on a device: the fastest of the variants that the mapping names."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from roller.expr import TensorExpr
from roller.insight.cost.kernel_launch_types import (
    FusedKernel,
    HostWait,
    InstructionKernel,
    Kernel,
    Launch,
    MemoryKernel,
)
from roller.insight.cost.kernel_prices import ANY_UNITS, KernelPrice, KernelPricer
from roller.insight.cost.library_settings import DEFAULT_TF32
from roller.insight.trace.torch_release import NEWEST, TorchRelease
from roller.targets import LANGUAGES

#: A launch and its price.
Priced = tuple[Launch, KernelPrice]


class LibraryKernelChoice:
    """Chooses a variant for each launch that a library runs on one device."""

    def __init__(
        self, kernels: KernelPricer, tf32: Collection[str] = DEFAULT_TF32, release: TorchRelease = NEWEST
    ) -> None:
        self.kernels, self.release = kernels, release
        self.tf32 = frozenset(tf32)
        spec = kernels.spec
        #: Whether the library's matrix-unit kernels take only the channels-innermost layout, as cuDNN's do. Source:
        #: convolution guide of NVIDIA's deep learning performance documentation, "Tensor Layouts In Memory".
        target = LANGUAGES.get(spec.target.get("language", ""))
        self._innermost = target is not None and target.innermost_channels
        self._operands = frozenset(f.operand for f in spec.fragments)

    def fastest(self, launch: Launch) -> Sequence[Priced]:
        """Return the fastest variant of a launch: its launches in order, each with its price."""
        if self.kernels.policy != "library" or not isinstance(launch, (Kernel, FusedKernel)):
            return ((launch, self._price_launch(launch)),)
        if launch.own_kernel is not None and self._innermost:
            return ((launch.own_kernel, self._price_launch(launch.own_kernel)),)
        if launch.before_cudnn_9 is not None and self._innermost and not self.release.has_cudnn_9:
            return ((launch.before_cudnn_9, self._price_launch(launch.before_cudnn_9)),)
        ways = [*self._priced_usable_variants(launch)]
        # For 16-bit dtypes, cuDNN runs a matrix-unit kernel wherever it has one, even if it has to convert tensors.
        if not ways or all(expr.inputs[0].dtype == "float32" for expr in _expressions_of_kernel(launch)):
            ways.append(((launch, self._price_launch(launch)),))
        return min(ways, key=lambda way: sum(price.seconds for _, price in way))

    def _priced_usable_variants(self, launch: Kernel | FusedKernel) -> Iterator[Sequence[Priced]]:
        converts = any(way.conversions for way in launch.ways)
        for way in launch.ways:
            if way.conversions and not self._innermost:
                continue
            # The guides of cuDNN versions before 9 list no matrix-unit kernel that takes channels-first images
            # unconverted.
            if converts and not way.conversions and self._innermost and not self.release.has_cudnn_9:
                continue
            if (way.conversions or way.kernel.units == "matrix") and not self._runs_on_matrix_unit(way.kernel):
                continue
            yield tuple((part, self._price_launch(part)) for part in (*way.conversions, way.kernel))

    def _runs_on_matrix_unit(self, kernel: Kernel | FusedKernel) -> bool:
        return self._rounds_to_tf32(kernel) or all(
            expr.inputs[0].dtype in self._operands for expr in _expressions_of_kernel(kernel)
        )

    def _rounds_to_tf32(self, kernel: Kernel | FusedKernel) -> bool:
        """Return whether a kernel rounds its operands to TF32."""
        if kernel.kind not in self.tf32 or "tfloat32" not in self._operands:
            return False
        return all(expr.inputs[0].dtype == "float32" for expr in _expressions_of_kernel(kernel))

    def _library_policy(self, kernel: Kernel | FusedKernel) -> str:
        """Return the library policy by which a kernel is priced."""
        if kernel.units == "planar":
            return f"{ANY_UNITS}-threads" if self._innermost else ANY_UNITS
        if kernel.units == "winograd":
            return f"{ANY_UNITS}-winograd"
        return f"{ANY_UNITS}-tf32" if self._rounds_to_tf32(kernel) else ANY_UNITS

    def _price_launch(self, launch: Launch) -> KernelPrice:
        if isinstance(launch, Kernel):
            price = self.kernels.price_expression(launch.expr, self._library_policy(launch)).multiply_by_count(
                launch.count
            )
            return self._limit_to_cache_bandwidth(launch, price) if launch.cache_bytes else price
        if isinstance(launch, FusedKernel):
            return self.kernels.price_fused_kernel(launch, self._library_policy(launch))
        if isinstance(launch, InstructionKernel):
            return self.kernels.price_instruction_kernel(launch)
        if isinstance(launch, MemoryKernel):
            return self.kernels.price_stream(launch.read_bytes, launch.written_bytes, launch.launches, launch.threads)
        return self.kernels.price_stream(launch.read_bytes, 0.0, kernel_count(launch))

    def _limit_to_cache_bandwidth(self, launch: Kernel, price: KernelPrice) -> KernelPrice:
        """Raise a price to the time that the shared cache needs to serve the threads, if that is longer."""
        spec = self.kernels.spec
        layer = next((x for x in spec.memory_layers if x.name == "l2"), None)
        if layer is None or self.kernels.policy != "library":
            return price
        seconds = launch.count * (launch.cache_bytes / layer.bandwidth_bytes_per_s + spec.execution.launch_s)
        if seconds <= price.seconds:
            return price
        longer = seconds / price.seconds
        return replace(
            price, seconds=seconds, lower=price.lower * longer, upper=price.upper * longer, resource="l2"
        )  # fmt: skip


def _expressions_of_kernel(kernel: Kernel | FusedKernel) -> tuple[TensorExpr, ...]:
    return (kernel.expr,) if isinstance(kernel, Kernel) else kernel.products


def kernel_count(launch: Launch) -> int:
    """Return the number of kernels in a launch."""
    if isinstance(launch, Kernel):
        return launch.count
    return 0 if isinstance(launch, HostWait) else launch.launches
