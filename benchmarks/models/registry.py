"""The networks by name."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer

from benchmarks.models import bert, deeplab, light, lstm, mobilenet, mobilenet_v3, nasnet, resnet

#: What writes a model: to a path, at a batch, of a size.
_SIZED: Mapping[str, tuple[Callable[[Path, int, Any], None], Any]] = {
    "bert_base": (bert.build, bert.BASE),
    "bert_large": (bert.build, bert.LARGE),
    "bert_base_decomposed": (bert.build, replace(bert.BASE, fused_norms=False)),
    "deeplab_v3_mobilenet": (deeplab.build, deeplab.V3_LARGE),
    "lstm": (lstm.build, lstm.OPERATOR),
    "lstm_unrolled": (lstm.build, lstm.UNROLLED),
    "mobilenet_v2": (mobilenet.build, mobilenet.V2),
    "mobilenet_v3": (mobilenet_v3.build, mobilenet_v3.V3),
    "resnet18": (resnet.build, resnet.R18),
    "resnet50": (resnet.build, resnet.R50),
    "nasnet_a_mobile": (nasnet.build, nasnet.A_MOBILE),
}

#: Every name that :func:`build` takes.
MODELS: tuple[str, ...] = (*light.names(), *_SIZED)


def build(name: str, folder: Path, batch: int = 1, **sizes: Any) -> Path:
    """Write a model below ``folder`` and return its path; one that is there is left as it is.

    Parameters
    ----------
    name
        One of :data:`MODELS`.
    folder
        Made where it is missing.
    batch
        Fixed in the model.
    **sizes
        Fields of the network's size that differ (``layers=2``); the ``light_*`` networks take none but ``seed``.

    Raises
    ------
    typer.BadParameter
        Where there is no such model.
    """
    if name not in MODELS:
        raise typer.BadParameter(f"benchmarks.models: expected one of {', '.join(MODELS)}, got '{name}'.")
    varied = "".join(f"-{k}{v}" for k, v in sorted(sizes.items()))
    path = folder / f"{name}{varied}-b{batch}.onnx"
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    if name in _SIZED:
        write, size = _SIZED[name]
        write(path, batch, replace(size, **sizes))
    else:
        functools.partial(light.build, **sizes)(path, batch, name)
    return path
