"""Cross-checks of a device's values: contradictions are errors, and unusual values are reported."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from roller.hardware.architecture_features import cuda_architecture_number, has_async_copies
from roller.hardware.checks import spec_error
from roller.hardware.plausibility_warnings import plausibility_warnings
from roller.hardware.spec import DeviceSpec
from roller.targets import LANGUAGES

#: First CUDA architecture whose devices all have priced matrix units.
_MATRIX_SM = 80
#: Minimum and maximum number of threads in a warp, wavefront or subgroup of any GPU.
_GPU_LANES = (4, 128)
#: Size of the largest element.
_ELEMENT_BYTES = 8


def check_consistency(where: str, spec: DeviceSpec) -> None:
    """Raise an error if two values contradict each other."""
    limits, arch = spec.limits, spec.target.get("arch", "")
    if spec.execution.async_copy_bytes is not None and not has_async_copies(arch):
        raise spec_error(
            where,
            "execution.async_copy_bytes",
            f"expected a target with asynchronous copies (sm_80 or later), got '{arch or spec.kind}'. Leave it out.",
        )
    pairs: list[tuple[str, float | None, str, float | None]] = [
        ("limits.usable_registers_per_thread", limits.usable_registers_per_thread,
         "limits.registers_per_thread", limits.registers_per_thread),
        ("limits.usable_vector_registers", limits.usable_vector_registers,
         "limits.vector_registers", limits.vector_registers),
        ("limits.threads_per_block", limits.threads_per_block, "limits.threads_per_unit", limits.threads_per_unit),
    ]  # fmt: skip
    for layer in spec.memory_layers:
        path = f"memory_layers.{layer.name}"
        pairs.append((f"{path}.usable_bytes", layer.usable_bytes, f"{path}.capacity_bytes", layer.capacity_bytes))
        if (layer.banks is None) != (layer.bank_width_bytes is None):
            raise spec_error(where, f"{path}.banks", "expected banks and bank_width_bytes together. Add the other one.")
        if (layer.bandwidth_per_teu_bytes_per_s is None) != (layer.saturation_exponent is None):
            problem = "expected bandwidth_per_teu_bytes_per_s and saturation_exponent together. Add the other one."
            raise spec_error(where, f"{path}.saturation_exponent", problem)
        if layer.byte_j is not None and spec.power_w is None:
            raise spec_error(where, f"{path}.byte_j", "expected beside power_w: alone it limits nothing. Add power_w.")
        if (layer.read_bandwidth_bytes_per_s is None) != (layer.triad_bandwidth_bytes_per_s is None):
            problem = "expected read_bandwidth_bytes_per_s and triad_bandwidth_bytes_per_s together. Add the other one."
            raise spec_error(where, f"{path}.triad_bandwidth_bytes_per_s", problem)
    if (spec.power_w is None) != (spec.execution.busy_cycle_j is None and spec.execution.matrix_cycle_j is None):
        problem = "expected beside execution.busy_cycle_j or matrix_cycle_j: one alone limits nothing. Add the other."
        raise spec_error(where, "power_w", problem)
    if spec.execution.standing_w is not None and not spec.execution.standing_w < (spec.power_w or 0.0):
        problem = f"expected less than power_w = {spec.power_w}, got {spec.execution.standing_w}. Lower it."
        raise spec_error(where, "execution.standing_w", problem)
    for path, value, bound_path, bound in pairs:
        if value is not None and bound is not None and value > bound:
            raise spec_error(where, path, f"expected at most {bound_path} = {bound}, got {value}. Lower it.")
    lanes = spec.teu.lanes
    if lanes & (lanes - 1):
        raise spec_error(
            where, "teu.lanes", f"expected a power of two, got {lanes}. Write the lanes of one {spec.teu.name}."
        )
    _check_powers_of_two(where, spec)
    if spec.traits.blocks:
        _check_gpu_limits(where, spec)


def _check_powers_of_two(where: str, spec: DeviceSpec) -> None:
    """Raise an error for a size that must be a power of two and is not, or a transaction below one element."""
    for layer in spec.memory_layers:
        path = f"memory_layers.{layer.name}"
        for name in ("transaction_bytes", "line_bytes", "banks", "bank_width_bytes"):
            value = getattr(layer, name)
            if value is not None and value & (value - 1):
                raise spec_error(where, f"{path}.{name}", f"expected a power of two, got {value}. Correct the value.")
        loads = layer.scope == "device" and not spec.traits.exchanges
        if loads and layer.transaction_bytes < _ELEMENT_BYTES:
            problem = f"expected at least the {_ELEMENT_BYTES} bytes of one element, got {layer.transaction_bytes}."
            raise spec_error(where, f"{path}.transaction_bytes", f"{problem} Correct the value.")


def _check_gpu_limits(where: str, spec: DeviceSpec) -> None:
    rates = spec.compute.ops_per_cycle_per_unit
    threads = spec.limits.threads_per_block
    least, most = _GPU_LANES
    if not least <= spec.teu.lanes <= most:
        problem = f"expected from {least} to {most}, as GPUs have, got {spec.teu.lanes}. Correct them."
        raise spec_error(where, "teu.lanes", problem)
    if threads is not None and threads < spec.teu.lanes:
        problem = f"expected at least the {spec.teu.lanes} lanes of one {spec.teu.name}, got {threads}. Raise it."
        raise spec_error(where, "limits.threads_per_block", problem)
    for f in spec.fragments:
        if f.threads % spec.teu.lanes:
            problem = f"expected lanes that divide the {f.threads} threads of '{f.name}', got {spec.teu.lanes}."
            raise spec_error(where, "teu.lanes", f"{problem} Correct the lanes, or remove the fragment.")
        if f"{f.rate}.{f.operand}" not in rates and f.rate not in rates:
            path = f"compute.ops_per_cycle_per_unit.{f.rate}.{f.operand}"
            raise spec_error(where, path, f"missing: fragment '{f.name}' needs it. Add it, or remove the fragment.")


def check_spec_file(where: str, spec: DeviceSpec) -> None:
    """Raise an error if a slower layer is smaller than a faster one, or the sustained clock exceeds the boost clock."""
    # Checked for files only: what-if overrides may describe such a device.
    lasting, boost = spec.sustained_clock_hz, spec.clock_hz
    if lasting is not None and lasting > boost:
        problem = f"expected at most clock_hz.boost = {boost:g} Hz, got {lasting:g}. Exchange them, or correct one."
        raise spec_error(where, "clock_hz.sustained", problem)
    for fast, slow in pairwise(spec.memory_layers) if spec.traits.blocks else ():
        if slow.capacity_bytes < fast.capacity_bytes:
            path, least = f"memory_layers.{slow.name}.capacity_bytes", f"{fast.capacity_bytes} bytes of {fast.name}"
            problem = f"expected at least the {least}, got {slow.capacity_bytes}. Values are bytes: check the unit."
            raise spec_error(where, path, problem)


def spec_warnings(spec: DeviceSpec) -> tuple[str, ...]:
    """Return warnings about possible but rare values, each after its path; most such values are in a wrong unit.

    >>> from roller.hardware import load_spec
    >>> spec_warnings(load_spec("v100"))
    ()
    >>> spec_warnings(load_spec("v100", {"memory_layers.global.bandwidth_bytes_per_s": 8.64e9}))[0].split(': ')[1]
    '8.64 GB/s is 312 times below the 2700 GB/s of l2'
    """
    found = [*_layer_warnings(spec), *_rate_warnings(spec), *_target_warnings(spec)]
    accused = {line.partition(": ")[0] for line in found}
    for line in plausibility_warnings(spec, accused):
        path = line.partition(": ")[0]
        if path not in accused:
            accused.add(path)
            found.append(line)
    return tuple(found)


#: Maximum usual ratios of neighbouring layers' bandwidths, and of capacity to budget; shipped devices stay below half.
_MOST_STEP, _MOST_SPARED = 50, 16
_CLOCKS_HZ = (3e8, 6.5e9)


def _layer_warnings(spec: DeviceSpec) -> Iterator[str]:
    for layer in spec.memory_layers:
        if layer.usable_bytes is not None and layer.usable_bytes * _MOST_SPARED < layer.capacity_bytes:
            yield (f"memory_layers.{layer.name}.usable_bytes: {layer.usable_bytes} of {layer.capacity_bytes} bytes is "
                   "little: is it in KiB?")  # fmt: skip
    # Layers beyond the home layer are links to elsewhere: any ratio is possible.
    at_home = [x.name for x in spec.memory_layers].index(spec.traits.home)
    for fast, slow in pairwise(spec.memory_layers[: at_home + 1]):
        path, ratio = f"memory_layers.{slow.name}", fast.bandwidth_bytes_per_s / slow.bandwidth_bytes_per_s
        own, other = (f"{x.bandwidth_bytes_per_s / 1e9:.4g} GB/s" for x in (slow, fast))
        if ratio > _MOST_STEP:
            said = f"{own} is {ratio:.0f} times below the {other} of {fast.name}"
            yield f"{path}.bandwidth_bytes_per_s: {said}: check the unit"
        if ratio < 1:
            said = f"{own} is above the {other} of the faster layer {fast.name}"
            yield f"{path}.bandwidth_bytes_per_s: {said}: check both"
        if slow.capacity_bytes < fast.capacity_bytes:
            sizes = f"{slow.capacity_bytes} bytes are less than the {fast.capacity_bytes} of {fast.name}"
            yield f"{path}.capacity_bytes: {sizes}: check both"


def _rate_warnings(spec: DeviceSpec) -> Iterator[str]:
    low, high = _CLOCKS_HZ
    if not low <= spec.clock_hz <= high:
        usual = f"{low / 1e9:g} to {high / 1e9:g} GHz are usual"
        yield f"clock_hz: {spec.clock_hz / 1e9:g} GHz, where {usual}: check the unit"
    for name, rate in spec.compute.rates:
        path = f"compute.ops_per_cycle_per_unit.{name}"
        if spec.sources.get(path) == "datasheet" and rate > 1 and rate % 1:
            yield f"{path}: {rate:g} operations of a cycle and unit are no whole number: is it TFLOP/s?"
    used = {f.rate for f in spec.fragments}
    for family in ("matrix", "group_matrix"):
        given = any(name.partition(".")[0] == family for name, _ in spec.compute.rates)
        if given and family not in used:
            yield f"fragments: none of rate '{family}', though compute gives one: that unit is never used"


def _target_warnings(spec: DeviceSpec) -> Iterator[str]:
    arch = spec.target.get("arch", "")
    first, last = LANGUAGES[spec.target["language"]].architectures
    known = cuda_architecture_number(arch)
    if not first <= known <= last:
        yield f"target.arch: '{arch}' is no architecture known here (sm_{first} to sm_{last}): check its name"
    if known >= _MATRIX_SM and not spec.fragments:
        yield f"fragments: none, though every {arch} has a matrix unit: float16 is priced without it"
