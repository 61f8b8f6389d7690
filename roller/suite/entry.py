"""Entries of the training benchmark: models with training steps. PyTorch is imported only when a model is built."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from roller.errors import ModelError, shown


@dataclass(frozen=True)
class TrainingStep:
    """One training step; calling it with the tensors of a batch returns the detached scalar loss."""

    run: Callable[..., Any]
    optimizers: tuple[Any, ...]

    def __call__(self, *inputs: Any) -> Any:
        """Run the step."""
        return self.run(*inputs)


@dataclass(frozen=True)
class Workload:
    """A model of one size with its inputs and training step."""

    build: Callable[[], Any]  # returns a new ``torch.nn.Module``, which contains all networks
    # Maps a number of samples to the synthetic tensors of a step, with the shapes of the data set
    inputs: Callable[[int], tuple[Any, ...]]
    step: Callable[[Any], TrainingStep]  # maps the module to its :class:`TrainingStep`
    batch: int  # default number of samples per step
    units_per_sample: float = 1.0  # units of throughput per sample: tokens, seconds of audio, images


@dataclass(frozen=True)
class SuiteModel:
    """One of the sixteen models.

    Parameters
    ----------
    name
        Name on the command line, such as ``"resnet50"``.
    title
        Name in the publication.
    application
        Task, such as ``"image classification"``.
    home
        ``"module:function"``; the function takes ``reduced`` and returns the :class:`Workload`.
    unit
        Unit of throughput per second: ``"images"``, ``"tokens"``, ``"seconds of audio"``.
    batches
        Numbers of samples per step in a sweep, in ascending order.
    parameters
        Number of trained parameters in the published size.
    layers
        Maps each module class to its number of instances in the published size.
    parameters_published
        Number of parameters in the publication or its reference implementation; 0 if neither gives one.
    source
        The publication and the source of the sizes.
    recurrent
        Whether recurrent layers take most of the time.
    edition
        Edition of the published benchmark that introduced the model, 1 or 2; 0 for Roller's own models.
    """

    name: str
    title: str
    application: str
    home: str
    unit: str
    batches: tuple[int, ...]
    parameters: int
    layers: Mapping[str, int] = field(repr=False)
    parameters_published: int = 0
    source: str = field(default="", repr=False)
    recurrent: bool = False
    edition: int = 0

    def workload(self, *, reduced: bool = False, **options: Any) -> Workload:
        """Return the workload at its published size, or ``reduced`` to a size that two cores train in seconds.

        Raises
        ------
        ModelError
            If PyTorch is missing, or the model does not have one of the options.
        """
        from roller.insight.tracing import require_torch

        require_torch(f"suite: {self.name}")
        module, _, function = self.home.partition(":")
        make = getattr(importlib.import_module(module), function)
        try:
            found: Workload = make(reduced=reduced, **options)
        except TypeError as error:
            raise ModelError(f"suite: {self.name}: expected options it has, got {shown(options)}: {error}.") from error
        return found
