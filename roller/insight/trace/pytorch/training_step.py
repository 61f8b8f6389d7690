"""The traced step: forward pass, loss, backward pass and update, as in a user's script."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from roller.errors import ModelError, did_you_mean, shown

_AMP = {"fp16": torch.float16, "float16": torch.float16, "bf16": torch.bfloat16, "bfloat16": torch.bfloat16}


def _block_wise_optimizer(name: str) -> Callable[[Any], torch.optim.Optimizer]:
    """Return a function that creates the named optimizer of ``block_wise``, which it loads only when called."""

    def make(parameters: Any) -> torch.optim.Optimizer:
        from roller.insight.trace.pytorch import block_wise

        made: torch.optim.Optimizer = getattr(block_wise, name)(parameters)
        return made

    return make


_OPTIMIZERS: Mapping[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
    "adamw_fused": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3, fused=True),
    "adafactor": lambda parameters: torch.optim.Adafactor(parameters),
    "lion": _block_wise_optimizer("Lion"),
    "adamw_8bit": _block_wise_optimizer("AdamW8bit"),
    "lion_8bit": _block_wise_optimizer("Lion8bit"),
    "paged_adamw_8bit": _block_wise_optimizer("PagedAdamW8bit"),
    "paged_adamw_32bit": _block_wise_optimizer("PagedAdamW32bit"),
}


@dataclass(frozen=True)
class Step:
    """The parts of a step other than the forward pass.

    Parameters
    ----------
    loss
        Function of the output and the targets.
    targets
        Targets, which are passed to the loss after the output.
    amp
        Dtype of automatic mixed precision; ``None`` for none.
    keep_gradients
        Whether gradients are zeroed in place rather than dropped.
    accumulate
        Number of forward and backward passes per update.
    scale_loss
        Whether the loss is scaled if ``amp`` is float16.
    """

    loss: Callable[..., Any] | None
    targets: Sequence[Any] = ()
    amp: torch.dtype | None = None
    keep_gradients: bool = False
    accumulate: int = 1
    scale_loss: bool = True


def amp_dtype(name: Any) -> torch.dtype | None:
    """Return the dtype of automatic mixed precision with a given name; ``None`` for full precision."""
    if name is None or name is False:
        return None
    found = _AMP.get(str(name).removeprefix("torch."))
    if found is None:
        raise ModelError(
            f"trace: amp: expected None, 'fp16' or 'bf16', got {shown(name)}{did_you_mean(str(name), _AMP)}. "
            f"Choose one of them."
        )
    return found


def make_optimizer_for_copied_model(given: Any, model: torch.nn.Module, twins: Mapping[int, torch.nn.Parameter]) -> Any:
    """Return the given optimizer for the parameters of the copied model; ``None`` if none is given."""
    if given is None:
        return None
    learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if isinstance(given, str):
        if given not in _OPTIMIZERS:
            raise ModelError(
                f"trace: optimizer: expected one of {', '.join(_OPTIMIZERS)}, got {shown(given)}"
                f"{did_you_mean(given, _OPTIMIZERS)}. Or pass a function of the parameters."
            )
        return _OPTIMIZERS[given](learning)
    if isinstance(given, torch.optim.Optimizer):
        groups = [{**group, "params": [twins.get(id(p), p) for p in group["params"]]} for group in given.param_groups]
        return type(given)(groups, **given.defaults)
    if not callable(given):
        raise ModelError(
            f"trace: optimizer: expected a name, an optimizer or a function of the parameters, got {shown(given)}. "
            f"Pass e.g. 'adamw'."
        )
    return given(learning)


def make_training_step(
    model: torch.nn.Module, call: Callable[[], Any], optimizer: Any, step: Step
) -> Callable[[], None]:
    """Return a function that runs one training step."""
    scaler = None
    if step.amp is torch.float16 and step.scale_loss and optimizer is not None:
        scaler = torch.amp.GradScaler("cuda")

    def run_step() -> None:
        if optimizer is not None:
            optimizer.zero_grad(set_to_none=not step.keep_gradients)
        else:
            model.zero_grad(set_to_none=not step.keep_gradients)
        for _ in range(step.accumulate):
            with _autocast(step.amp):
                loss = _compute_loss(step, call())
            if step.accumulate > 1:
                loss = loss / step.accumulate
            (loss if scaler is None else scaler.scale(loss)).backward()
            del loss
        if scaler is not None:
            scaler.step(optimizer)
            scaler.update()
        elif optimizer is not None:
            optimizer.step()

    return run_step


def make_inference_step(call: Callable[[], Any], amp: torch.dtype | None) -> Callable[[], None]:
    """Return a function that runs the model once."""

    def run_model() -> None:
        with torch.no_grad(), _autocast(amp):
            call()

    return run_model


@contextmanager
def mixed_precision_step_context(name: str | None) -> Iterator[Callable[[], AbstractContextManager[Any]]]:
    """Yield a function that returns a context for a user's step in mixed precision; with float16, scale its loss."""
    dtype = amp_dtype(name)
    if dtype is not torch.float16:
        yield lambda: _autocast(dtype)
        return
    scaler = torch.amp.GradScaler("cuda")
    backward, scale = torch.Tensor.backward, torch.amp.GradScaler.scale

    inside = False

    def scaled_backward(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        nonlocal inside
        if inside:  # a PyTorch mode calls the method by its name once more
            backward(tensor, *args, **kwargs)
            return
        inside = True
        try:
            backward(scale(scaler, tensor), *args, **kwargs)
        finally:
            inside = False

    def refuse_own_scaling(other: Any, outputs: Any) -> Any:
        raise ModelError(
            "trace: amp: expected a step without mixed precision of its own, got one that scales its loss. "
            "Leave amp out."
        )

    def unscale_gradients(optimizer: Any, args: Any, kwargs: Any) -> None:
        checked: Any = _NoStepOptimizer(optimizer)
        scaler.step(checked)

    before = register_optimizer_step_pre_hook(unscale_gradients)
    after = register_optimizer_step_post_hook(lambda optimizer, args, kwargs: scaler.update())
    torch.Tensor.backward = scaled_backward  # type: ignore[method-assign, assignment]
    torch.amp.GradScaler.scale = refuse_own_scaling  # type: ignore[method-assign]
    try:
        yield lambda: _autocast(dtype)
    finally:
        torch.Tensor.backward, torch.amp.GradScaler.scale = backward, scale  # type: ignore[method-assign]
        before.remove()
        after.remove()


class _NoStepOptimizer:
    """Stand-in for an optimizer, used by a scaler to unscale and check the gradients; its step does nothing."""

    def __init__(self, optimizer: Any) -> None:
        self.param_groups = optimizer.param_groups

    def step(self) -> None:
        """Do nothing."""


def _autocast(amp: torch.dtype | None) -> Any:
    return nullcontext() if amp is None else torch.autocast("cuda", dtype=amp)


def _compute_loss(step: Step, output: Any) -> Any:
    if step.loss is not None:
        loss = step.loss(output, *step.targets)
    elif isinstance(output, torch.Tensor):
        loss = output if output.dim() == 0 else output.sum()
    else:
        loss = getattr(output, "loss", None)
        if loss is None and isinstance(output, Mapping):
            loss = output.get("loss")
    if not isinstance(loss, torch.Tensor) or loss.dim() != 0:
        raise ModelError(
            f"trace: loss: expected a tensor of no axes, got {shown(type(loss).__name__)}. "
            f"Pass loss=, a function of the model's output that returns a scalar."
        )
    return loss
