"""Settings of PyTorch's caching allocator for CUDA, in the format of ``PYTORCH_ALLOC_CONF``, and its fixed sizes."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from roller.errors import RollerError

MIB = 1 << 20
#: Every request is rounded up to a multiple of this (``kMinBlockSize`` of ``c10/core/AllocatorConfig.h``, torch 2.13).
MIN_BLOCK_BYTES = 512
#: Rounded requests up to this size use the small pool (``kSmallSize``).
SMALL_BYTES = MIB
#: Size in bytes of a segment in the small pool (``kSmallBuffer``).
SMALL_SEGMENT_BYTES = 2 * MIB
#: Requests from this size on get their own segment (``kMinLargeAlloc``), in multiples of ``ROUND_LARGE_BYTES``.
MIN_LARGE_BYTES = 10 * MIB
ROUND_LARGE_BYTES = 2 * MIB
#: First exponent of two with its own number of divisions (1 MiB), and number of such exponents (up to 64 GiB).
_FIRST_POWER, _POWERS = 20, 16


class AllocatorSettingsError(RollerError, ValueError):
    """PyTorch does not accept an allocator setting."""


@dataclass(frozen=True)
class AllocatorSettings:
    """Settings of the caching allocator; the defaults are PyTorch's.

    Parameters
    ----------
    max_split_bytes
        Blocks of at least this size are not split (``max_split_size_mb``); ``None``: all blocks may be split.
    power2_divisions
        Number of steps between neighbouring powers of two to which requests are rounded up, for each power from 1 MiB
        (also for smaller requests) to 64 GiB; 0 or 1: requests are rounded up to multiples of 512 bytes
        (``roundup_power2_divisions``).
    gc_threshold
        Share of the allowed memory above which long-unused blocks are released (``garbage_collection_threshold``); 0:
        blocks are never released.
    expandable_segments
        Whether segments grow page by page instead of being allocated as a whole.
    memory_fraction
        Share of the device's memory that a process may reserve (``per_process_memory_fraction``).
    large_segment_bytes
        Segment size in bytes for requests of more than 1 MiB and less than 10 MiB (``large_segment_size_mb``).
    """

    max_split_bytes: int | None = None
    power2_divisions: tuple[int, ...] = field(default=(0,) * _POWERS)
    gc_threshold: float = 0.0
    expandable_segments: bool = False
    memory_fraction: float = 1.0
    large_segment_bytes: int = 20 * MIB

    def round_up_bytes(self, size_bytes: int) -> int:
        """Return the block size in bytes to which a request is rounded up.

        Examples
        --------
        >>> AllocatorSettings().round_up_bytes(1), AllocatorSettings().round_up_bytes(513)
        (512, 1024)
        >>> AllocatorSettings.parse("roundup_power2_divisions:4").round_up_bytes(1_300_000) / (1 << 20)
        1.25
        """
        if size_bytes < MIN_BLOCK_BYTES:
            return MIN_BLOCK_BYTES
        power = size_bytes.bit_length() - 1
        divisions = self.power2_divisions[min(max(power - _FIRST_POWER, 0), _POWERS - 1)]
        if divisions > 1 and size_bytes > MIN_BLOCK_BYTES * divisions:
            step = (1 << power) // divisions
            return -(-size_bytes // step) * step
        return -(-size_bytes // MIN_BLOCK_BYTES) * MIN_BLOCK_BYTES

    def segment_bytes(self, rounded_bytes: int) -> int:
        """Return the size of the segment requested from the driver if no free block can hold ``rounded_bytes``.

        Examples
        --------
        >>> [AllocatorSettings().segment_bytes(n << 20) >> 20 for n in (1, 2, 10, 11)]
        [2, 20, 10, 12]
        """
        if rounded_bytes <= SMALL_BYTES:
            return SMALL_SEGMENT_BYTES
        if rounded_bytes < MIN_LARGE_BYTES:
            return self.large_segment_bytes
        return -(-rounded_bytes // ROUND_LARGE_BYTES) * ROUND_LARGE_BYTES

    @classmethod
    def parse(cls, text: str) -> AllocatorSettings:
        """Parse a value of ``PYTORCH_ALLOC_CONF``.

        Settings that do not affect the reserved memory of the device (for pinned memory, for handles) are ignored.

        Raises
        ------
        AllocatorSettingsError
            If a setting is unknown, PyTorch refuses its value, or the backend is not PyTorch's own.

        Examples
        --------
        >>> AllocatorSettings.parse("max_split_size_mb:128,expandable_segments:True").max_split_bytes >> 20
        128
        """
        found: dict[str, object] = {}
        for name, value in _split_pairs(text):
            if name not in _READERS and not name.startswith(_WITHOUT_EFFECT):
                raise AllocatorSettingsError(
                    f"allocator settings: expected one of {', '.join(sorted(_READERS))}, got '{name}'. "
                    "See PYTORCH_ALLOC_CONF in PyTorch's notes on CUDA."
                )
            if name in _READERS:
                key, read, expected = _READERS[name]
                try:
                    found[key] = read(value)
                except (ValueError, KeyError):
                    raise AllocatorSettingsError(
                        f"allocator settings, '{name}': expected {expected}, got '{value}'. Change the value."
                    ) from None
        found.pop("backend", None)
        return cls(**found)  # type: ignore[arg-type]


_WITHOUT_EFFECT = ("pinned_", "release_lock", "graph_capture", "throw_on", "expandable_segments_handle")


def _split_pairs(text: str) -> list[tuple[str, str]]:
    """Split text such as ``name:value,name:[a:1,b:2]`` into names and values."""
    pairs = [x.strip() for x in re.findall(r"[^,\[]+(?:\[[^\]]*\])?", text) if x.strip()]
    for pair in pairs:
        if ":" not in pair:
            raise AllocatorSettingsError(f"allocator settings: expected 'name:value', got '{pair}'. Write name:value.")
    return [(name.strip(), value.strip()) for name, _, value in (p.partition(":") for p in pairs)]


def _parse_max_split_bytes(text: str) -> int:
    if int(text) * MIB <= 20 * MIB:
        raise ValueError(text)
    return int(text) * MIB


def _parse_fraction_below_1(text: str) -> float:
    if not 0 < float(text) < 1:
        raise ValueError(text)
    return float(text)


def _parse_fraction_up_to_1(text: str) -> float:
    if not 0 < float(text) <= 1:
        raise ValueError(text)
    return float(text)


def _parse_power_of_2(text: str) -> int:
    if int(text) < 1 or int(text) & (int(text) - 1):
        raise ValueError(text)
    return int(text)


def _parse_roundup_divisions(text: str) -> tuple[int, ...]:
    """Parse ``4`` or ``[256:1,512:2,>:8]``: keys are MiB; the first value also applies below its key, ``>`` above."""
    if not text.startswith("["):
        return (_parse_power_of_2(text),) * _POWERS
    found, last = [0] * _POWERS, -1
    for key, _, value in (row.partition(":") for row in text.strip("[]").split(",")):
        if key.strip() == ">":
            found[last + 1 :] = [_parse_power_of_2(value)] * (_POWERS - last - 1)
            continue
        at = min(_parse_power_of_2(key).bit_length() - 1, _POWERS - 1)
        if last < 0:
            found[:at] = [_parse_power_of_2(value)] * at
        found[at], last = _parse_power_of_2(value), at
    return tuple(found)


def _parse_backend_setting(text: str) -> str:
    if text != "native":
        raise ValueError(text)
    return text


#: Setting -> field, function that reads it, and its valid values.
_READERS = {
    "max_split_size_mb": ("max_split_bytes", _parse_max_split_bytes, "more than 20 (MiB)"),
    "roundup_power2_divisions": (
        "power2_divisions",
        _parse_roundup_divisions,
        "a power of two, or [MiB:power of two,...]",
    ),
    "garbage_collection_threshold": ("gc_threshold", _parse_fraction_below_1, "a share between 0 and 1"),
    "expandable_segments": ("expandable_segments", {"True": True, "False": False}.__getitem__, "True or False"),
    "per_process_memory_fraction": ("memory_fraction", _parse_fraction_up_to_1, "a share above 0 and at most 1"),
    "large_segment_size_mb": (
        "large_segment_bytes",
        lambda x: _parse_max_split_bytes(x) if x != "20" else 20 * MIB,
        "at least 20 (MiB)",
    ),
    "backend": ("backend", _parse_backend_setting, "native, the only one that is simulated"),
}
