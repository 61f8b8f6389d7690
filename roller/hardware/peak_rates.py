"""Peak rates computed from a device's values."""

from __future__ import annotations

from roller.hardware.sections import DTYPES
from roller.hardware.spec import DeviceSpec
from roller_runtime.core.display import bytes_text

#: Multiply-add classes, fastest first.
_PIPES = ("group_matrix", "matrix", "dot", "fma")


def peak_flops_and_instruction_class(spec: DeviceSpec, dtype: str) -> tuple[float, str] | None:
    """Return a dtype's peak multiply-add rate (FLOP/s) and the rate's instruction class, or ``None`` without a rate.

    >>> from roller.hardware import load_spec
    >>> peak, pipe = peak_flops_and_instruction_class(load_spec("h200"), "float16")
    >>> f"{peak / 1e12:.0f} TFLOP/s", pipe
    ('1071 TFLOP/s', 'group_matrix')
    """
    rates = spec.compute.ops_per_cycle_per_unit
    usual = dtype == "float32"
    found = [(rates[f"{p}.{dtype}"], p) for p in _PIPES if f"{p}.{dtype}" in rates]
    found += [(rates["fma"], "fma")] if usual and "fma" in rates and "fma.float32" not in rates else []
    if not found:
        return None
    rate, pipe = max(found, key=lambda x: x[0])
    return 2 * rate * spec.units * spec.clock_hz, pipe


def peak_report_lines(spec: DeviceSpec) -> list[str]:
    """Return text lines with the peak operations per second for each dtype, and each layer's size and bandwidth."""
    clock = f"{spec.clock_hz / 1e9:.4g} GHz"
    lines = []
    for dtype in DTYPES:
        peak = peak_flops_and_instruction_class(spec, dtype)
        if peak is not None:
            unit = "TOP/s" if dtype.startswith("int") else "TFLOP/s"
            lines.append(f"{dtype}: {peak[0] / 1e12:.4g} {unit} ({peak[1]}, at {clock})")
    for layer in spec.memory_layers:
        every = {"thread": " a thread", "unit": " a unit"}.get(layer.scope, "")
        bandwidth = f"{layer.bandwidth_bytes_per_s / 1e9:,.4g} GB/s"
        lines.append(f"{layer.name}: {bytes_text(layer.capacity_bytes)}{every}, {bandwidth}")
    return lines
