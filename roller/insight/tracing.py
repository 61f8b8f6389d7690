"""``roller.trace``: traces the operators that a model would run on a device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from roller.errors import ModelError
from roller.hardware import DeviceSpec
from roller.insight.trace.options import TraceOptions
from roller.insight.traced_step import TracedStep


def require_torch(what: str = "trace") -> None:
    """Raise an error if PyTorch, which ``what`` needs, is missing."""
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise ModelError(
            f"{what}: expected PyTorch, got none that can be imported. "
            "Install roller with the extra 'insight', e.g. pip install 'roller[insight]'; in a clone: make torch."
        ) from error


def trace(
    model: Any,
    inputs: Any,
    *,
    optimizer: Any = None,
    loss: Callable[..., Any] | None = None,
    targets: Sequence[Any] = (),
    amp: str | None = None,
    checkpoint: bool | str | Sequence[str] = False,
    device: str | DeviceSpec | None = None,
    attention: str = "auto",
    calls: int | None = None,
    keep_gradients: bool = False,
    accumulate: int = 1,
    scale_loss: bool = True,
    channels_last: bool = False,
    share_nonzero: float | None = None,
    batch_axis: int = 0,
    iterations: int | None = None,
    torch_release: str | None = None,
) -> TracedStep:
    """Trace the operators and allocations of a model's training steps or inferences on a device.

    Neither a GPU nor a GPU build of PyTorch is needed, and nothing is computed, since tensors are meta tensors. With an
    optimizer or a loss, training steps are traced; otherwise, inferences are traced.

    Parameters
    ----------
    model
        A ``torch.nn.Module``, which is not changed, or a function that returns a module, which is then built without
        memory.
    inputs
        A tensor, a tuple of arguments, or a mapping of arguments by name.
    optimizer
        ``"sgd"``, ``"momentum"``, ``"adam"``, ``"adamw"``, ``"adamw_fused"``, ``"adafactor"``, ``"lion"``,
        ``"adamw_8bit"``, ``"lion_8bit"``, ``"paged_adamw_8bit"`` or ``"paged_adamw_32bit"``; a class or a function of
        the parameters; or an optimizer for the parameters of ``model``.
    loss
        Function of the output and ``targets``; by default, the output's ``loss`` attribute, or the output's sum.
    targets
        Targets, which are passed to ``loss`` after the output.
    amp
        ``"fp16"`` (with loss scaling) or ``"bf16"``; ``None`` for full precision.
    checkpoint
        Modules that are recomputed in the backward pass instead of saving their activations: ``True`` for the repeated
        blocks, or path patterns such as ``"encoder.layers.*"`` for the members of that list and ``"**.attn"`` for all
        modules with that name.
    device
        Device whose rules choose kernels, e.g. ``"h100"`` or ``"cpu"``; by default, an sm_80 GPU.
    attention
        ``"auto"``, ``"flash"``, ``"efficient"``, ``"cudnn"`` or ``"math"``.
    calls
        Number of calls of the step to trace. By default, calls are traced until every optimizer has stepped and the
        shapes repeat: two for an ordinary step, eight for a step that accumulates over four calls; at most 32.
    keep_gradients
        Whether to zero gradients in place instead of dropping them.
    accumulate
        Number of forward and backward passes per update.
    scale_loss
        Whether ``amp="fp16"`` scales the loss, as it should.
    channels_last
        Whether images and filters are laid out with channels innermost.
    share_nonzero
        Share of a mask that is assumed to be true if a shape depends on the mask's values; by default, the actual share
        if the values are known, otherwise the whole mask.
    batch_axis
        Axis of the samples in inputs and targets, which ``at`` resizes for another batch.
    iterations
        Another name for ``calls``.
    torch_release
        PyTorch release, such as ``"1.10"``, whose rules decide what is saved and allocated; by default, the newest.
        Before 1.11, softmax saves its input; before 2.0, attention is not fused, optimizers update one parameter after
        another, and ``zero_grad`` keeps gradients.

    Returns
    -------
    TracedStep
        Operators, allocations and frees, with methods ``at``, ``forecast``, ``memory`` and ``max_batch`` for other
        batches, devices, precisions and checkpointing.

    Raises
    ------
    ModelError
        If the model, its loss or its optimizer raises an error, or an argument is invalid.

    Examples
    --------
    >>> import pytest
    >>> torch = pytest.importorskip("torch")
    >>> found = trace(torch.nn.Linear(8, 4), torch.zeros(2, 8), optimizer="sgd")
    >>> [operator.name for operator in found.steady() if operator.phase == "forward"]
    ['aten.t.default', 'aten.addmm.default', 'aten.sum.default']
    >>> sorted({storage.kind for storage in found.storages.values()})
    ['activation', 'gradient', 'input', 'parameter', 'temporary']
    """
    require_torch()
    from roller.insight.trace.pytorch.trace_model import Request, make_retracer

    again = make_retracer(
        Request(
            model, inputs, optimizer, loss, tuple(targets), amp, checkpoint, device, attention,
            iterations if calls is None else calls, keep_gradients, accumulate, scale_loss, channels_last,
            share_nonzero, batch_axis, torch_release,
        ),
        TracedStep.of,
    )  # fmt: skip
    return again(TraceOptions())


def trace_entry(
    path: str | Path,
    *,
    batch: int | None = None,
    device: str | DeviceSpec | None = None,
    amp: str | None = None,
    checkpoint: bool | str | Sequence[str] = False,
    calls: int | None = None,
    iterations: int | None = None,
    torch_release: str | None = None,
) -> TracedStep:
    """Trace an entry file, as described in :mod:`roller.insight.trace.pytorch.entry_file`."""
    require_torch()
    from roller.insight.trace.pytorch import entry_file

    count = iterations if calls is None else calls
    again = entry_file.make_retracer(
        path, TracedStep.of, batch=batch, device=device, amp=amp, checkpoint=checkpoint, calls=count,
        torch_release=torch_release,
    )  # fmt: skip
    return again(TraceOptions())


def trace_providers(
    name: str,
    file: str | Path,
    *,
    model_provider: Callable[[], Any],
    input_provider: Callable[..., Any],
    iteration_provider: Callable[[Any], Callable[..., Any]],
    batch: int | None = None,
    device: str | DeviceSpec | None = None,
    amp: str | None = None,
    checkpoint: bool | str | Sequence[str] = False,
    calls: int | None = None,
    torch_release: str | None = None,
) -> TracedStep:
    """Trace a step whose three providers are given directly instead of by an entry file."""
    require_torch()
    from types import ModuleType

    from roller.insight.trace.pytorch import entry_file

    module = ModuleType(name)
    module.__file__ = str(file)
    vars(module).update(
        model_provider=model_provider, input_provider=input_provider, iteration_provider=iteration_provider
    )
    again = entry_file.make_retracer_of_module(
        module, name, TracedStep.of, batch=batch, device=device, amp=amp, checkpoint=checkpoint, calls=calls,
        torch_release=torch_release,
    )  # fmt: skip
    return again(TraceOptions())
