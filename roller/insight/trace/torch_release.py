"""Differences between PyTorch releases in what they save, allocate and load.

Each property names the release that changed it, according to PyTorch's release notes and source.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from roller.errors import ModelError, shown

#: The first release that has automatic mixed precision and the operators of a trace.
_OLDEST = (1, 6)


@dataclass(frozen=True, order=True)
class TorchRelease:
    """A release of PyTorch, given by its first two numbers; the default is the newest release.

    Examples
    --------
    >>> TorchRelease.parse("1.10.2").softmax_saves_input, TorchRelease.parse("2.1").softmax_saves_input
    (True, False)
    >>> TorchRelease().has_fused_attention, str(TorchRelease.parse("1.10.2")), str(TorchRelease())
    (True, '1.10', '')
    """

    major: int = 1_000
    minor: int = 0

    @classmethod
    def parse(cls, text: str | None) -> TorchRelease:
        """Return the release of a version such as ``"1.10"`` or ``"2.1.1+cu121"``; the newest for ``None`` or ``""``.

        Raises
        ------
        ModelError
            If the text is not a version, or is a version before 1.6.
        """
        if text is None or text == "":
            return cls()
        found = re.fullmatch(r"(\d{1,3})\.(\d{1,3})(\.\S+)?", text) if isinstance(text, str) else None
        release = cls(int(found[1]), int(found[2])) if found else None
        if release is None or release < cls(*_OLDEST):
            raise ModelError(
                f"torch_release: expected a version of PyTorch from {_OLDEST[0]}.{_OLDEST[1]} on as text, such as "
                f"'1.10', got {shown(text)}. Leave it out for the newest."
            )
        return release

    def __str__(self) -> str:
        """Return the two numbers, or an empty string for the default."""
        return "" if self == TorchRelease() else f"{self.major}.{self.minor}"

    @property
    def softmax_saves_input(self) -> bool:
        """Whether softmax and log-softmax save their input in addition to their result (before 1.11)."""
        return (self.major, self.minor) < (1, 11)

    @property
    def has_fused_attention(self) -> bool:
        """Whether attention has its own kernels; before 2.0, it is two products and a softmax."""
        return (self.major, self.minor) >= (2, 0)

    @property
    def efficient_attention_takes_bias(self) -> bool:
        """Whether memory-efficient attention supports a mask (from 2.1 on)."""
        return (self.major, self.minor) >= (2, 1)

    @property
    def flash_attention_keeps_layout(self) -> bool:
        """Whether flash attention's result keeps the query's layout (FlashAttention-2, from 2.2 on)."""
        return (self.major, self.minor) >= (2, 2)

    @property
    def unfused_attention_widens(self) -> bool:
        """Whether attention without a fused kernel computes 16-bit floats in 32 bits (from 2.5 on)."""
        return (self.major, self.minor) >= (2, 5)

    @property
    def has_cudnn_9(self) -> bool:
        """Whether the release's packages include cuDNN 9 (from 2.4 on; earlier releases include cuDNN 8)."""
        return (self.major, self.minor) >= (2, 4)

    @property
    def has_compiler(self) -> bool:
        """Whether ``torch.compile`` is available (from 2.0 on)."""
        return (self.major, self.minor) >= (2, 0)

    @property
    def groups_optimizers(self) -> bool:
        """Whether GPU optimizers update all parameters at once by default (``foreach``; from 2.0 on)."""
        return (self.major, self.minor) >= (2, 0)

    @property
    def drops_gradients(self) -> bool:
        """Whether ``zero_grad()`` drops gradients by default rather than zeroing them in place (from 2.0 on)."""
        return (self.major, self.minor) >= (2, 0)

    @property
    def allocates_workspaces(self) -> bool:
        """Whether cuBLAS workspaces come from the caching allocator (from 1.13 on) rather than from cuBLAS itself."""
        return (self.major, self.minor) >= (1, 13)

    @property
    def loads_lazily(self) -> bool:
        """Whether kernels are loaded when they first run (CUDA 11.7, by default from 2.0 on) rather than at start."""
        return (self.major, self.minor) >= (2, 0)

    @property
    def eager_share(self) -> float:
        """Size of the CUDA context relative to that of PyTorch 1.10, which loads all kernels at start.

        From 1.13 on (CUDA 11.7), it is 922 of 1823 MiB on an A100 (stas00/ml-engineering, training/performance).
        """
        return 922 / 1823 if (self.major, self.minor) >= (1, 13) else 1.0

    @property
    def has_expandable_segments(self) -> bool:
        """Whether the caching allocator supports ``expandable_segments`` (from 2.1 on)."""
        return (self.major, self.minor) >= (2, 1)


#: The current release.
NEWEST = TorchRelease()
