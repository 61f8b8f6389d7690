"""What a release of PyTorch saves, allocates and loads, where releases differ.

Each property names the release that changed it, by PyTorch's release notes and source.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from roller.errors import ModelError, shown

#: The first release with automatic mixed precision, and with operators that a trace has.
_OLDEST = (1, 6)


@dataclass(frozen=True, order=True)
class TorchRelease:
    """A release of PyTorch by its first two numbers; the default is the newest one.

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
        """Return the release of a version such as ``"1.10"`` or ``"2.1.1+cu121"``; ``None`` or ``""``: the newest.

        Raises
        ------
        ModelError
            The text is no version, or one before 1.6.
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
        """Return the two numbers; of the default, nothing."""
        return "" if self == TorchRelease() else f"{self.major}.{self.minor}"

    @property
    def softmax_saves_input(self) -> bool:
        """Whether softmax and log-softmax save their input for backward, beside their result (before 1.11)."""
        return (self.major, self.minor) < (1, 11)

    @property
    def has_fused_attention(self) -> bool:
        """Whether attention has kernels of its own; before 2.0 it is two products and a softmax."""
        return (self.major, self.minor) >= (2, 0)

    @property
    def efficient_attention_takes_bias(self) -> bool:
        """Whether memory-efficient attention supports a mask (from 2.1 on)."""
        return (self.major, self.minor) >= (2, 1)

    @property
    def flash_attention_keeps_layout(self) -> bool:
        """Whether flash attention lays its result out as the query (FlashAttention-2, from 2.2 on), not by samples."""
        return (self.major, self.minor) >= (2, 2)

    @property
    def unfused_attention_widens(self) -> bool:
        """Whether the attention without a fused kernel computes 16-bit floats in 32 bits (from 2.5 on)."""
        return (self.major, self.minor) >= (2, 5)

    @property
    def has_cudnn_9(self) -> bool:
        """Whether its packages bring cuDNN 9 (from 2.4 on; before, 8)."""
        return (self.major, self.minor) >= (2, 4)

    @property
    def has_compiler(self) -> bool:
        """Whether ``torch.compile`` is there (from 2.0 on)."""
        return (self.major, self.minor) >= (2, 0)

    @property
    def groups_optimizers(self) -> bool:
        """Whether optimizers on a GPU update all parameters at once by default (``foreach``; from 2.0 on)."""
        return (self.major, self.minor) >= (2, 0)

    @property
    def drops_gradients(self) -> bool:
        """Whether ``zero_grad()`` drops gradients by default, rather than zeroing them in place (from 2.0 on)."""
        return (self.major, self.minor) >= (2, 0)

    @property
    def allocates_workspaces(self) -> bool:
        """Whether workspaces of cuBLAS come from the caching allocator (from 1.13 on); before, from cuBLAS itself."""
        return (self.major, self.minor) >= (1, 13)

    @property
    def loads_lazily(self) -> bool:
        """Whether kernels are loaded when they first run (CUDA 11.7, from 2.0 on by default), rather than at start."""
        return (self.major, self.minor) >= (2, 0)

    @property
    def eager_share(self) -> float:
        """Share that its context has of one of PyTorch 1.10, where all kernels are loaded at start.

        From 1.13 on (CUDA 11.7), 922 of 1823 MiB on an A100 (stas00/ml-engineering, training/performance).
        """
        return 922 / 1823 if (self.major, self.minor) >= (1, 13) else 1.0

    @property
    def has_expandable_segments(self) -> bool:
        """Whether the caching allocator knows ``expandable_segments`` (from 2.1 on)."""
        return (self.major, self.minor) >= (2, 1)


#: Today's.
NEWEST = TorchRelease()
