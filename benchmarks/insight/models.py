"""The suite of models whose traces, times and memory are looked at; weights are of no value, only of a shape."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import roller
from benchmarks.insight import images, transformers
from roller.insight.trace.trace import Trace
from roller.suite.models.bert import BERT_LARGE
from roller.suite.models.residual import ResNet50


@dataclass(frozen=True)
class Model:
    """One of the suite.

    Parameters
    ----------
    build
        Makes the module.
    classes
        Of the result's last axis, or of its channels for images.
    length
        Tokens of a sample; 0 where samples are images.
    image
        Pixels of a side; 0 where samples are tokens.
    batch
        Samples of a step where none is named.
    blocks
        What checkpointing repeats: ``True`` for the repeated blocks, or patterns of paths.
    """

    build: Callable[[], nn.Module]
    classes: int
    length: int = 0
    image: int = 0
    batch: int = 8
    blocks: bool | str = True

    def inputs(self, batch: int, length: int = 0) -> torch.Tensor:
        """Return a batch of shapes."""
        if self.image:
            return torch.empty(batch, 3, self.image, self.image, device="meta")
        return torch.empty(batch, length or self.length, dtype=torch.int64, device="meta")

    def targets(self, batch: int, length: int = 0) -> torch.Tensor:
        """Return the classes wanted, one for each row of the result."""
        shape = {"image": (batch,), "pixel": (batch, self.image, self.image)}
        kind = "pixel" if self.classes == 2 else "image"
        rows = (batch, length or self.length) if self.length else shape[kind]
        return torch.empty(rows, dtype=torch.int64, device="meta")


SUITE: Mapping[str, Model] = {
    "resnet50": Model(ResNet50, 1000, image=224, batch=32),
    "bert_large": Model(partial(transformers.Encoder, BERT_LARGE), 30522, length=512),
    "gpt2_large": Model(partial(transformers.Decoder, transformers.GPT2_LARGE), 50257, length=1024, batch=4),
    "lstm": Model(images.Tagger, 64, length=128, batch=32, blocks="lstm"),
    "vit": Model(images.VisionTransformer, 1000, image=224, batch=32),
    "moe": Model(
        partial(transformers.Mixture, transformers.Sizes(12, 768, 12, 3072, 32128, 1024), 8, fused=True),
        32128, length=512,
    ),
    "unet": Model(images.UNet, 2, image=256),
    "opt_13": Model(partial(transformers.Decoder, transformers.OPT_13, relu=True), 50272, length=2048, batch=2),
    "gpt3_xl": Model(partial(transformers.Decoder, transformers.GPT3_XL), 50257, length=2048, batch=2),
    "gpt3_27": Model(partial(transformers.Decoder, transformers.GPT3_27), 50257, length=2048, batch=2),
    "switchxl4": Model(partial(transformers.Mixture, transformers.SWITCH_XL, 4), 32128, length=2048, batch=1),
}  # fmt: skip


def loss(output: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
    """Return the cross entropy of rows, whether they are tokens, images or pixels."""
    if output.dim() == 3:
        return functional.cross_entropy(output.view(-1, output.shape[-1]), classes.view(-1))
    return functional.cross_entropy(output, classes)


def trace(name: str, batch: int | None = None, length: int = 0, *, training: bool = True, **options: Any) -> Trace:
    """Return the trace of a model of the suite; ``options`` as :func:`roller.trace` takes them."""
    model = SUITE[name]
    batch = batch or model.batch
    if options.get("checkpoint") is True:
        options["checkpoint"] = model.blocks
    if training:
        options = {"optimizer": "adam", "loss": loss, "targets": (model.targets(batch, length),), **options}
    return roller.trace(model.build, model.inputs(batch, length), **options)
