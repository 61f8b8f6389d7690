"""Settings, other than operator and device, that decide which kernels a framework's libraries run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from roller.insight.trace.torch_release import NEWEST, TorchRelease

#: Kinds of float32 products that PyTorch computes in TF32 by default: ``"convolution"``, not ``"product"``.
DEFAULT_TF32 = ("convolution",)


@dataclass(frozen=True)
class LibrarySettings:
    """Settings of PyTorch and its libraries that decide which kernels run.

    Examples
    --------
    >>> LibrarySettings.of({"tf32": ["product"]}).tf32, LibrarySettings.of({"tf32": ["product"]}, tf32=False).tf32
    (('product',), ())
    """

    #: Kinds of float32 products that may be computed in TF32, if the device supports it.
    tf32: tuple[str, ...] = DEFAULT_TF32
    release: TorchRelease = NEWEST

    @classmethod
    def of(cls, options: Mapping[str, Any], tf32: bool | None = None) -> LibrarySettings:
        """Return the settings given by a trace's options."""
        # ``tf32`` allows all kinds or none; if it is ``None``, the trace's own kinds are allowed.
        kinds = options.get("tf32", DEFAULT_TF32) if tf32 is None else ("convolution", "product") if tf32 else ()
        return cls(tuple(kinds), TorchRelease.parse(options.get("torch_release")))


#: Default settings of the newest PyTorch release.
DEFAULT_SETTINGS = LibrarySettings()
