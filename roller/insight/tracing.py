"""``roller.trace``: what a model would run on a device that is not here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from roller.errors import ModelError
from roller.hardware import DeviceSpec
from roller.insight.trace.options import TraceOptions
from roller.insight.traced_step import TracedStep


def need_torch(what: str = "trace") -> None:
    """Say what to install where PyTorch is missing, which ``what`` needs.

    Raises
    ------
    ModelError
        It is.
    """
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise ModelError(
            f"{what}: expected PyTorch, got none that can be imported. "
            "Install roller with the extra 'insight', e.g. pip install 'roller[insight]'."
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
) -> TracedStep:
    """Return what a model's training steps, or inferences, would run on a device, with all memory they ask for.

    Neither a GPU nor a build of PyTorch for one is needed, and nothing is computed: tensors are shapes alone. With an
    optimizer or a loss, steps of training are traced; with neither, inferences.

    Parameters
    ----------
    model
        A ``torch.nn.Module``, which stays as it is, or a function that returns one, which is then built without memory.
    inputs
        A tensor, a tuple of arguments, or a mapping of arguments by name; values do not matter.
    optimizer
        ``"sgd"``, ``"momentum"``, ``"adam"``, ``"adamw"`` or ``"adamw_fused"``; a class or a function of the
        parameters; or an optimizer over the parameters of ``model``.
    loss
        Function of the output, and of ``targets``; by default the output's ``loss``, or its sum.
    targets
        Passed to ``loss`` after the output.
    amp
        ``"fp16"`` (with scaling of the loss) or ``"bf16"``; ``None`` for none.
    checkpoint
        Modules that run again in backward instead of keeping what they computed: ``True`` for the repeated blocks, or
        patterns of paths: ``"encoder.layers.*"`` for the members of that list and not what is in them, ``"**.attn"``
        for all modules of that name, wherever they are.
    device
        Device whose rules choose kernels, e.g. ``"h100"`` or ``"cpu"``; one of sm_80 by default.
    attention
        ``"auto"``, ``"flash"``, ``"efficient"``, ``"cudnn"`` or ``"math"``.
    calls
        Calls of the step to trace. By default as many as it takes until every optimizer has stepped and their shapes
        repeat: two of an ordinary step, of one that accumulates over four calls eight; 32 at most.
    keep_gradients
        Zero gradients in place instead of dropping them.
    accumulate
        Forwards and backwards for each update.
    scale_loss
        Whether ``amp="fp16"`` scales the loss, as it should.
    channels_last
        Images and filters with channels innermost.
    share_nonzero
        Share of a mask that is taken as true where a shape depends on its values; by default what the values of the
        inputs say, and all of it where they do not.
    batch_axis
        Axis of inputs and targets that holds the samples: what ``at`` changes for another batch.
    iterations
        Another name of ``calls``.

    Returns
    -------
    TracedStep
        Operators, allocations and frees. Its methods ``at``, ``forecast``, ``memory`` and ``max_batch`` ask for other
        batches, devices, precisions and checkpointing.

    Raises
    ------
    ModelError
        The model, its loss or its optimizer raises, or an argument is none of the above.

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
    need_torch()
    from roller.insight.trace.pytorch.trace_model import Request, retracer

    again = retracer(
        Request(
            model, inputs, optimizer, loss, tuple(targets), amp, checkpoint, device, attention,
            iterations if calls is None else calls, keep_gradients, accumulate, scale_loss, channels_last,
            share_nonzero, batch_axis,
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
) -> TracedStep:
    """Return the trace of an entry file, as :mod:`roller.insight.trace.pytorch.entry_file` describes it.

    Parameters
    ----------
    path
        A Python file with ``model_provider``, ``input_provider`` and ``iteration_provider``.
    batch
        Samples of a step; by default that of ``input_provider``.
    amp
        Automatic mixed precision put around the step, as in :func:`trace`; for a file that has none of its own.
    device, checkpoint, calls, iterations
        As in :func:`trace`.

    Raises
    ------
    ModelError
        A provider is missing, or raises.
    """
    need_torch()
    from roller.insight.trace.pytorch import entry_file

    count = iterations if calls is None else calls
    again = entry_file.retracer(
        path, TracedStep.of, batch=batch, device=device, amp=amp, checkpoint=checkpoint, calls=count
    )
    return again(TraceOptions())
