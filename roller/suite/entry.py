"""An entry of the training benchmark: what a model is, and what trains it; building it imports PyTorch."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from roller.errors import ModelError, shown


@dataclass(frozen=True)
class TrainingStep:
    """One step of training, callable with the tensors of a batch; it returns the loss, a scalar without a gradient.

    Parameters
    ----------
    run
        Forward, backward and update of every network that the step trains.
    optimizers
        The optimizers that it steps.
    """

    run: Callable[..., Any]
    optimizers: tuple[Any, ...]

    def __call__(self, *inputs: Any) -> Any:
        """Run the step."""
        return self.run(*inputs)


@dataclass(frozen=True)
class Workload:
    """A model of one size with all that trains it.

    Parameters
    ----------
    build
        Returns a new ``torch.nn.Module``; of several networks, one that holds them.
    inputs
        From a number of samples to the tensors of a step, synthetic, of the shapes of the data set.
    step
        From the module to the :class:`TrainingStep` on such tensors.
    batch
        Samples of a step where none are asked for.
    units_per_sample
        Units of throughput in a sample: tokens, seconds of audio, images.
    """

    build: Callable[[], Any]
    inputs: Callable[[int], tuple[Any, ...]]
    step: Callable[[Any], TrainingStep]
    batch: int
    units_per_sample: float = 1.0


@dataclass(frozen=True)
class SuiteModel:
    """One of the sixteen models.

    Parameters
    ----------
    name
        As the command line takes it, ``"resnet50"``.
    title
        As its publication calls it.
    application
        What it is for: ``"image classification"``.
    home
        ``"module:function"``; the function takes ``reduced`` and returns the :class:`Workload`.
    unit
        Unit of throughput per second: ``"images"``, ``"tokens"``, ``"seconds of audio"``.
    batches
        Samples per step of a sweep, small to large.
    parameters
        Elements of all trained parameters in the published size.
    layers
        Class of a module -> how many of them the published size has.
    parameters_published
        Number of parameters in the publication or its reference implementation; 0 if neither names one.
    source
        The publication, and where the sizes are from.
    recurrent
        Whether most of its time is in recurrent layers.
    edition
        Edition of the published benchmark that has it: 1, or 2 of those it added; 0 for ours.
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
        """Return what trains the model in its published size, or ``reduced`` to one that two cores train in seconds.

        Raises
        ------
        ModelError
            PyTorch is missing, or the model has no such option.
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
