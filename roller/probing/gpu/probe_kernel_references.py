"""NumPy references for the probe kernels, which prove that the timed work was done."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from roller.runtime.probe_plan_format import BufferContents, ProbeCase

#: Function that maps steps, case, input and thread indices to the word that each thread writes.
Reference = Callable[[int, ProbeCase, BufferContents, np.ndarray], np.ndarray]
_TURNS = 8
_VALUES = 8


def wrap_to_int32(values: np.ndarray) -> np.ndarray:
    """Return integers wrapped to 32 bits."""
    return np.asarray(values, np.int64).astype(np.uint32).view(np.int32)


def _walk_reference(loads: int) -> Reference:
    def run(steps: int, case: ProbeCase, data: BufferContents, threads: np.ndarray) -> np.ndarray:
        words, total, first = case.parameters
        sums = sum((n + 1) * ((first + n * total + threads + steps * loads * total) % words) for n in range(loads))
        return wrap_to_int32(np.asarray(sums))

    return run


def _sweep_reference(steps: int, case: ProbeCase, data: BufferContents, threads: np.ndarray) -> np.ndarray:
    (vectors,) = case.parameters
    start = threads // case.block * 4 * case.block % vectors + threads % case.block
    step = np.arange(steps)[:, None] * 4 + np.arange(4)
    at = (start[:, None, None] + step * case.block) % vectors
    return wrap_to_int32(data.at(at[..., None] * 4 + np.arange(4)).astype(np.int64).sum(axis=(1, 2, 3)))


def _runs_reference(steps: int, case: ProbeCase, data: BufferContents, threads: np.ndarray) -> np.ndarray:
    words, pitch, run, offset, jump, first = case.parameters
    start = (first + threads // run * pitch) % words
    base = (start[:, None] + np.arange(steps * 4) * jump) % words
    return wrap_to_int32(data.at(base + offset + (threads % run)[:, None]).astype(np.int64).sum(axis=1))


def _shared_reference(width: int, count: int, pitch: int, window: int) -> Reference:
    def run(steps: int, case: ProbeCase, data: BufferContents, threads: np.ndarray) -> np.ndarray:
        bump, stride, lanes = (*case.parameters, width, case.block)[:3] if width > 1 else case.parameters
        lane = threads % lanes
        at = (lane * stride & window)[:, None] + np.arange(steps) * bump & window
        words = at[..., None, None] + np.arange(count)[:, None] * pitch + np.arange(width)
        return wrap_to_int32(data.at(words).astype(np.int64).sum(axis=(1, 2, 3)))

    return run


def _chase_reference(steps: int, case: ProbeCase, data: BufferContents, threads: np.ndarray) -> np.ndarray:
    at = case.parameters[0] + (threads & case.parameters[1])
    block = data.block()
    for _ in range(steps * 16):
        at = block[at // 4]
    return wrap_to_int32(at)


def _lane_operands(data: BufferContents, rows: np.ndarray, lane: np.ndarray, count: int, pitch: int) -> np.ndarray:
    """Return the lanes' operands per step, in vectors of up to four words that begin ``pitch`` words apart."""
    n = np.arange(count)
    place = lane[:, None] * min(count, 4) + n // 4 * pitch + n % 4
    return data.at(rows[:, None, None] + place).astype(np.float64)


def _tile_reference(ry: int, rx: int) -> Reference:
    def run(steps: int, case: ProbeCase, data: BufferContents, threads: np.ndarray) -> np.ndarray:
        rows = np.arange(steps) * 256 % 4096
        thread = threads % case.block
        a = _lane_operands(data, rows, thread // 8 % 4, ry, 16)
        b = _lane_operands(data, rows + 128, thread % 8, rx, 32)
        weight = 1.0 + np.arange(ry * rx).reshape(ry, rx) % 3
        return np.asarray(np.einsum("sti,stj,ij->t", a, b, weight), np.float32)

    return run


def _chain_reference(
    start: float, step: float, dtype: type, turn: Callable[[np.ndarray], np.ndarray], lanes: int = 1
) -> Reference:
    """Return the reference for eight values per thread that pass through ``turn`` eight times per step."""

    def run(steps: int, case: ProbeCase, data: BufferContents, threads: np.ndarray) -> np.ndarray:
        x = (data.at(np.array(0)) + step * np.arange(_VALUES)).astype(dtype)
        for _ in range(steps * _TURNS):
            x = turn(x)
        return np.full(len(threads), lanes * x.astype(np.float64).sum(), np.float32)

    return run


def _rate_references(data: Sequence[float]) -> dict[str, Reference]:
    _, a, b = (np.float32(v) for v in data)
    return {
        "add": _chain_reference(0, 1, np.float32, lambda x: x + a),
        "special": _chain_reference(0, 0.125, np.float64, lambda x: np.exp(-x)),
        "widen": _chain_reference(0, 0.0625, np.float32, _upper_half_as_float16),
        "convert": _chain_reference(0, 0.0625, np.float32, lambda x: x.astype(np.float16).astype(np.float32) - a),
        "fma_half": _chain_reference(
            0, 0.125, np.float16, lambda x: (x.astype(np.float64) * a + b).astype(np.float16), lanes=2
        ),
        "fma_double": _chain_reference(0, 0.125, np.float64, lambda x: x * np.float64(a) + b),
    }


def _upper_half_as_float16(x: np.ndarray) -> np.ndarray:
    """Return the upper halves of float32 numbers, read as float16."""
    return (x.view(np.uint32) >> 16).astype(np.uint16).view(np.float16).astype(np.float32)


def _issue_integer_reference(steps: int, case: ProbeCase, data: BufferContents, threads: np.ndarray) -> np.ndarray:
    mask, more = case.parameters
    first, a, b = data.at(np.arange(3))
    x = (first + 0.125 * np.arange(_VALUES)).astype(np.float32)
    n = (threads[:, None] + np.arange(_VALUES)).astype(np.int64)
    for _ in range(steps * _TURNS):
        x = x * a + b
        n = (n ^ mask) + more
        x = x * a + b
    return np.asarray(x.astype(np.float64).sum() + (n & 255).sum(axis=1), np.float32)


def _integer_reference(steps: int, case: ProbeCase, data: BufferContents, threads: np.ndarray) -> np.ndarray:
    mask, more = case.parameters
    n = (threads[:, None] + np.arange(_VALUES)).astype(np.int64)
    for _ in range(steps * _TURNS):
        n = (n ^ mask) + more
    return np.asarray((n & 4095).sum(axis=1) + data.at(np.array(0)), np.float32)


def _issue_shared_reference(steps: int, case: ProbeCase, data: BufferContents, threads: np.ndarray) -> np.ndarray:
    (bump,) = case.parameters
    first, a, b = data.at(np.arange(3))
    x = np.broadcast_to(first + 0.125 * np.arange(_VALUES), (len(threads), _VALUES))
    at = threads % case.block & 1023
    for _ in range(steps):
        for t in range(2):
            row = data.at(at[:, None] + (t * 8 + np.arange(_VALUES)) * 257)
            x = (x * a + row) * a + b
        at = at + bump & 1023
    return np.asarray(x.sum(axis=1), np.float32)


def _matrix_reference(steps: int, case: ProbeCase, data: BufferContents, threads: np.ndarray) -> np.ndarray:
    tile = data.at(np.arange(1024)).astype(np.float64).reshape(4, 16, 16)
    total = sum((j + 1) * (tile[j % 2] @ tile[2 + j // 2]) for j in range(4))
    return np.asarray(np.ravel(total)[threads % 256] * steps)


def _uniform_matrix_reference(steps: int, case: ProbeCase, data: BufferContents, threads: np.ndarray) -> np.ndarray:
    a, b = data.at(np.arange(2)).astype(np.float64)
    return np.full(len(threads), steps * 8 * a * b * 10)


def _group_matrix_reference(steps: int, case: ProbeCase, data: BufferContents, threads: np.ndarray) -> np.ndarray:
    a, b = data.at(np.arange(16)).astype(np.float64).reshape(2, 8)
    one = steps * 4 * 2 * float(a @ b)  # four products per step with k = 16
    return np.full(len(threads), one * sum(i % 3 + 1 for i in range(128)))


def kernel_reference(case: ProbeCase, data: BufferContents, uniform: bool = False) -> Reference:
    """Return the reference for a case's kernel."""
    known: dict[str, Reference] = {
        "walk_1": _walk_reference(1), "walk_2": _walk_reference(2), "walk_4": _walk_reference(4),
        "sweep": _sweep_reference, "runs": _runs_reference, "vectors": _shared_reference(4, 8, 512, 4095),
        "strided": _shared_reference(1, 16, 257, 4095),
        "far": _chase_reference, "near": _chase_reference,
        "tile_1x1": _tile_reference(1, 1), "tile_2x2": _tile_reference(2, 2), "tile_4x4": _tile_reference(4, 4),
        "tile_8x4": _tile_reference(8, 4),
        "tile_8x8": _tile_reference(8, 8), "integer": _integer_reference, "issue_integer": _issue_integer_reference,
        "issue_shared": _issue_shared_reference,
        "empty": lambda s, c, d, t: wrap_to_int32(np.full(len(t), c.parameters[0] + int(d.at(np.array(0))))),
        "barrier": lambda s, c, d, t: wrap_to_int32(np.full(len(t), int(d.at(np.array(0))) + s * c.parameters[0])),
    }  # fmt: skip
    if case.entry in known:
        return known[case.entry]
    if case.entry.startswith("group_matrix_"):
        return _group_matrix_reference
    if case.entry.startswith("matrix_"):
        return _uniform_matrix_reference if uniform else _matrix_reference
    return _rate_references([float(v) for v in data.at(np.arange(3))])[case.entry]
