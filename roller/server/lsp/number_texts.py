"""Formats the figures of profiles as rounded text; exact values are sent as data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def time_text(seconds: float) -> str:
    """Format seconds with a suitable unit.

    Examples
    --------
    >>> time_text(0.0123456), time_text(0.0000021), time_text(12.5), time_text(0.0)
    ('12.3 ms', '2.1 µs', '12.5 s', '0 ms')
    """
    size = abs(seconds)
    if size >= 1:
        return f"{seconds:.3g} s" if size < 1000 else f"{seconds:.0f} s"
    if size >= 1e-3:
        return f"{1e3 * seconds:.3g} ms" if size < 0.9995 else "1 s"
    return f"{1e6 * seconds:.2g} µs" if 0 < size < 1e-5 else f"{1e6 * seconds:.0f} µs" if size else "0 ms"


def size_text(size_bytes: float) -> str:
    """Format bytes with a suitable unit.

    Examples
    --------
    >>> size_text(0), size_text(66560), size_text(524288000), size_text(5.5 * 2**30)
    ('0 B', '65 KiB', '500 MiB', '5.5 GiB')
    """
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if abs(size_bytes) >= scale:
            value = size_bytes / scale
            return f"{value:.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"
    return f"{size_bytes:.0f} B"


def share_text(part: float, whole: float) -> str:
    """Format a share in percent; return ``""`` if the whole is zero.

    Examples
    --------
    >>> share_text(1, 3), share_text(1, 1000), share_text(1, 0)
    ('33 %', '0.1 %', '')
    """
    if not whole:
        return ""
    percent = 100 * part / whole
    return f"{percent:.0f} %" if percent >= 9.95 else f"{percent:.1f} %"


def device_text(profile: Mapping[str, Any]) -> str:
    """Format the device of a profile, with the number of devices that share the batch."""
    name, count = profile["device"] or "unknown device", profile["devices"]
    return name if count == 1 else f"{count} x {name}"


def interval_text(lower_s: float, upper_s: float) -> str:
    """Format an interval; return ``""`` if it is unknown."""
    return f"{time_text(lower_s)} to {time_text(upper_s)}" if upper_s > lower_s else ""


def pipe_text(pipe: str) -> str:
    """Return the display name of a pipe, which is a kind of arithmetic unit.

    Examples
    --------
    >>> pipe_text("fma"), pipe_text("matrix")
    ('FMA', 'matrix')
    """
    return pipe.upper() if pipe == "fma" else pipe


def markdown_code(text: str) -> str:
    """Quote a text as Markdown code; replace characters that would end the code span."""
    return "`" + " ".join(text.replace("`", "'").split()) + "`"
