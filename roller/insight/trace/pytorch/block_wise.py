"""Optimizers with 8-bit or paged states, and 4-bit linear layers, in the published layout of bitsandbytes.

bitsandbytes' kernels need a GPU. These classes have the same names, arguments and memory sizes, so that an entry file
that imports them instead can be forecast; they compute nothing. An 8-bit state has one float32 scale per 256 elements;
parameters with fewer than 4096 elements have float32 states. 4-bit weights have one 8-bit scale per 64 elements, and
the scales have one float32 scale per 256 of them and a mean (Dettmers et al., 2022, arXiv:2110.02861; 2023,
arXiv:2305.14314).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.autograd import Function

from roller.errors import ModelError

#: Number of elements per scale of an 8-bit state (bitsandbytes 0.45 and later), and the smallest numbers of elements of
#: parameters whose states are 8-bit, or paged by the driver in a paged optimizer.
STATE_BLOCK, LEAST_8BIT, LEAST_PAGED = 256, 4096, 100_000
#: Number of elements of a 4-bit weight per scale, and number of these scales per second-level scale.
WEIGHT_BLOCK, SCALE_BLOCK = 64, 256


def _raise_on_real_optimizer_update(
    parameter: torch.Tensor, gradient: torch.Tensor, states: list[torch.Tensor], tables: list[torch.Tensor],
    paged_bytes: int,
) -> None:  # fmt: skip
    raise _not_computable_error("optimizer")


def _raise_on_real_4bit_dequantize(
    codes: torch.Tensor, scales: torch.Tensor, table: torch.Tensor, shape: list[int], dtype: torch.dtype
) -> torch.Tensor:
    raise _not_computable_error("4-bit weight")


def _raise_on_real_8bit_dequantize(codes: torch.Tensor, scales: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    raise _not_computable_error("8-bit number")


def _not_computable_error(what: str) -> ModelError:
    return ModelError(
        f"{what}: expected a forecast, which needs its sizes alone, got a step that computes. "
        f"Train with bitsandbytes, whose classes have the same names."
    )


#: Updates a parameter and its states in one kernel. ``tables`` contains the values that 8-bit codes represent;
#: ``paged_bytes`` bytes of the states are in memory that the driver pages.
update_block_wise = torch.library.custom_op(
    "roller::update_block_wise", _raise_on_real_optimizer_update, mutates_args=("parameter", "states")
)
#: Returns a 4-bit weight in a floating-point dtype.
dequantize_4bit = torch.library.custom_op("roller::dequantize_4bit", _raise_on_real_4bit_dequantize, mutates_args=())
#: Returns the float32 values of 8-bit codes.
dequantize_8bit = torch.library.custom_op("roller::dequantize_8bit", _raise_on_real_8bit_dequantize, mutates_args=())
update_block_wise.register_fake(lambda parameter, gradient, states, tables, paged_bytes: None)
dequantize_4bit.register_fake(lambda codes, scales, table, shape, dtype: codes.new_empty(shape, dtype=dtype))
dequantize_8bit.register_fake(lambda codes, scales, table: codes.new_empty(codes.shape, dtype=torch.float32))


class BlockWise(torch.optim.Optimizer):
    """An optimizer with 8-bit or 32-bit states, updated by one kernel per parameter.

    Parameters
    ----------
    params
        Parameters, as for any optimizer.
    states
        Number of state tensors per parameter.
    bits
        Bits per state element: 8, or 32 for a paged optimizer without quantization.
    is_paged
        Whether states of 100,000 elements or more lie in memory that the driver pages to the host, outside the caching
        allocator.
    hyperparameters
        Learning rate and other values that do not affect any size.
    """

    def __init__(
        self, params: Iterable[Any], *, states: int, bits: int = 8, is_paged: bool = False, **hyperparameters: Any
    ) -> None:
        super().__init__(params, {"lr": 1e-3, **hyperparameters})
        self._states, self._bits, self._is_paged = states, bits, is_paged
        self._tables: list[torch.Tensor] = []

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient."""
        loss = None if closure is None else closure()
        with torch.no_grad():
            for parameter in (p for group in self.param_groups for p in group["params"] if p.grad is not None):
                state = self.state[parameter]
                if not state:
                    state.update(self._new_state(parameter))
                held = [v for v in state.values() if isinstance(v, torch.Tensor)]
                update_block_wise(parameter, parameter.grad, held, self._tables, self._paged_bytes(parameter))
        return loss

    def _new_state(self, parameter: torch.Tensor) -> dict[str, Any]:
        """Return a parameter's new state with its device tensors; paged states are left out."""
        count, narrow = parameter.numel(), self._has_8bit_state(parameter)
        if narrow and not self._tables:
            self._tables = [torch.empty(256, device=parameter.device) for _ in range(self._states)]
        found: dict[str, Any] = {"step": 0}
        for n in range(1, self._states + 1):
            if not self._has_paged_state(parameter):
                found[f"state{n}"] = torch.zeros_like(parameter, dtype=torch.uint8 if narrow else torch.float32)
            if narrow:
                found[f"absmax{n}"] = torch.zeros(-(-count // STATE_BLOCK), device=parameter.device)
        return found

    def _has_8bit_state(self, parameter: torch.Tensor) -> bool:
        return self._bits == 8 and parameter.numel() >= LEAST_8BIT

    def _has_paged_state(self, parameter: torch.Tensor) -> bool:
        return self._is_paged and parameter.numel() >= LEAST_PAGED

    def _paged_bytes(self, parameter: torch.Tensor) -> int:
        each = 1 if self._has_8bit_state(parameter) else 4
        return self._states * each * parameter.numel() if self._has_paged_state(parameter) else 0


#: Arguments of bitsandbytes that change memory sizes, and the only supported value of each.
_ONLY = {"block_wise": True, "percentile_clipping": 100}


def _make_optimizer_class(name: str, states: int, bits: int, *, is_paged: bool) -> type[BlockWise]:
    """Return the class for an optimizer of bitsandbytes."""

    def __init__(self: BlockWise, params: Iterable[Any], lr: float = 1e-3, **others: Any) -> None:
        for argument, only in _ONLY.items():
            if others.get(argument, only) != only:
                raise ModelError(
                    f"{name}: {argument}: expected {only}, whose bytes are known, got {others[argument]!r}. "
                    f"Leave it out."
                )
        BlockWise.__init__(self, params, states=states, bits=bits, is_paged=is_paged, lr=lr, **others)

    paged = "; states of 100,000 elements and more are paged" if is_paged else ""
    body = {"__init__": __init__, "__module__": __name__, "__doc__": f"{states} states of {bits} bits{paged}."}
    return type(name, (BlockWise,), body)


Adam8bit = _make_optimizer_class("Adam8bit", 2, 8, is_paged=False)
AdamW8bit = _make_optimizer_class("AdamW8bit", 2, 8, is_paged=False)
PagedAdam8bit = _make_optimizer_class("PagedAdam8bit", 2, 8, is_paged=True)
PagedAdamW8bit = _make_optimizer_class("PagedAdamW8bit", 2, 8, is_paged=True)
PagedAdamW32bit = _make_optimizer_class("PagedAdamW32bit", 2, 32, is_paged=True)
Lion8bit = _make_optimizer_class("Lion8bit", 1, 8, is_paged=False)
PagedLion8bit = _make_optimizer_class("PagedLion8bit", 1, 8, is_paged=True)
SGD8bit = _make_optimizer_class("SGD8bit", 1, 8, is_paged=False)


class Lion(torch.optim.Optimizer):
    """Lion (Chen et al., 2023, arXiv:2302.06675): the sign of an interpolated momentum, with one state per parameter.

    Parameters
    ----------
    params, lr, betas, weight_decay
        See the publication.
    """

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-4, betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient."""
        loss = None if closure is None else closure()
        with torch.no_grad():
            for group in self.param_groups:
                self._update_group(group)
        return loss

    def _update_group(self, group: dict[str, Any]) -> None:
        lr, (fast, slow), decay = group["lr"], group["betas"], group["weight_decay"]
        for parameter in (p for p in group["params"] if p.grad is not None):
            state = self.state[parameter]
            if not state:
                state["exp_avg"] = torch.zeros_like(parameter)
            parameter.mul_(1 - lr * decay)
            update = state["exp_avg"].clone().mul_(fast).add_(parameter.grad, alpha=1 - fast).sign_()
            parameter.add_(update, alpha=-lr)
            state["exp_avg"].mul_(slow).add_(parameter.grad, alpha=1 - slow)


class _Linear4bitFunction(Function):
    """The product with a 4-bit weight, which is widened again in the backward pass; the input is not saved."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, layer: Linear4bit) -> torch.Tensor:
        """Return the product, shape ``(..., outputs)``."""
        ctx.layer = layer
        return nn.functional.linear(tensor, layer.widened(tensor.dtype), None)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        """Return the gradient with respect to the input."""
        return torch.matmul(gradient, ctx.layer.widened(gradient.dtype)), None


class Linear4bit(nn.Module):
    """A frozen 4-bit linear layer (NF4 or FP4), as used by QLoRA below its adapters.

    Parameters
    ----------
    input_features, output_features, bias
        See ``torch.nn.Linear``.
    compute_dtype
        Dtype of the product; by default, the input's dtype.
    compress_statistics
        Whether the scales are also quantized (double quantization).
    quant_type
        ``"nf4"`` or ``"fp4"``, which have the same size.
    """

    def __init__(
        self, input_features: int, output_features: int, bias: bool = True, compute_dtype: torch.dtype | None = None,
        compress_statistics: bool = True, quant_type: str = "nf4",
    ) -> None:  # fmt: skip
        super().__init__()
        if quant_type not in ("nf4", "fp4"):
            raise ModelError(f"Linear4bit: quant_type: expected nf4 or fp4, got {quant_type!r}. Choose one of them.")
        self.shape, self.compute_dtype = [output_features, input_features], compute_dtype
        count = output_features * input_features
        blocks = -(-count // WEIGHT_BLOCK)
        self.weight = nn.Parameter(torch.empty(-(-count // 2), 1, dtype=torch.uint8), requires_grad=False)
        self.bias = nn.Parameter(torch.zeros(output_features)) if bias else None
        scale = torch.uint8 if compress_statistics else torch.float32
        self.register_buffer("absmax", torch.empty(blocks, dtype=scale))
        self.register_buffer("code", torch.empty(16))
        self.compressed = compress_statistics
        if compress_statistics:
            self.register_buffer("nested_absmax", torch.empty(-(-blocks // SCALE_BLOCK)))
            self.register_buffer("nested_code", torch.empty(256))
            self.register_buffer("offset", torch.empty(()))

    def widened(self, dtype: torch.dtype) -> torch.Tensor:
        """Return the weight, shape ``(outputs, inputs)``, in a floating-point dtype as a temporary tensor."""
        scales = self.absmax
        if self.compressed:
            scales = dequantize_8bit(scales, self.nested_absmax, self.nested_code)
            scales += self.offset
        return dequantize_4bit(self.weight, scales, self.code, self.shape, dtype)

    def forward(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the outputs, shape ``(..., outputs)``, in the dtype of the input."""
        given = tensor.dtype
        tensor = tensor if self.compute_dtype is None else tensor.to(self.compute_dtype)
        result = _Linear4bitFunction.apply(tensor, self)
        if self.bias is not None:
            result = result + self.bias.to(result.dtype)
        return result.to(given)
