"""Plans of GPU probes as plain data: buffers, cases and expected results.

A plan runs on a machine with only Python, NumPy and CuPy, without a device specification: sizes, steps and expected
values are fixed when it is made.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

#: Number of steps of the run whose results are checked.
CHECK_STEPS = 3
#: Number of elements in the random block that a buffer repeats; a prime, so that its period never matches a stride.
PERIOD = 65_521


@dataclass(frozen=True)
class BufferContents:
    """Contents of an input buffer.

    Parameters
    ----------
    kind
        ``"ones"``; ``"random"`` integers; ``"small"`` integers from -2 to 2; ``"values"`` repeated; ``"chain"``: a
        random cycle through words at distance ``pitch``, each containing the byte offset of the next.
    words
        Size in 32-bit words.
    pitch
        Distance between a chain's elements, in words.

    Examples
    --------
    >>> BufferContents("values", 4, "float32", values=(0.5, 1.0)).block().tolist()
    [0.5, 1.0]
    >>> chain = BufferContents("chain", 8, pitch=2).block()
    >>> sorted(chain[::2].tolist())
    [0, 8, 16, 24]
    """

    kind: Literal["ones", "random", "small", "values", "chain"]
    words: int
    dtype: Literal["int32", "float32"] = "int32"
    pitch: int = 1
    values: tuple[float, ...] = ()

    def block(self) -> np.ndarray:
        """Return the words that the buffer repeats from its start, or the whole buffer."""
        return _generate_buffer_words(self)

    def at(self, places: np.ndarray) -> np.ndarray:
        """Return the words at the given offsets."""
        block = self.block()
        return np.asarray(block[np.asarray(places) % len(block)])


@functools.lru_cache(maxsize=4)
def _generate_buffer_words(contents: BufferContents) -> np.ndarray:
    rng = np.random.default_rng(20)
    out: np.ndarray
    if contents.kind == "chain":
        order = rng.permutation(contents.words // contents.pitch)
        out = np.zeros(contents.words, np.int32)
        out[order * contents.pitch] = np.roll(order, -1) * contents.pitch * 4
    elif contents.kind == "ones":
        out = np.ones(min(1024, contents.words), np.int32)
    elif contents.kind == "values":
        out = np.array(contents.values)
    else:
        low, high = (0, 1 << 20) if contents.kind == "random" else (-2, 3)
        out = rng.integers(low, high, min(PERIOD, contents.words))
    out = np.ascontiguousarray(out, contents.dtype)
    out.flags.writeable = False
    return out


@dataclass(frozen=True)
class ProbeCase:
    """One kernel at one size, timed over ``n`` and ``2n`` steps.

    Parameters
    ----------
    key
        Name in the plan, for example ``"walk_1 warps=64"``.
    entry
        Name of the kernel.
    grid, block
        Number of blocks, and number of threads per block.
    parameters
        Kernel parameters ``p[1:]``; ``p[0]`` is the number of steps.
    seconds
        Expected time of a step, in seconds: it gives the first guess for the number of steps and the time on a null
        device.
    input
        Index of the input buffer.
    advance
        ``(index in p, words per step, modulo)``: moves the start of the next run, so that the run reads no cached data.
    launches
        Whether each step is a separate launch.
    cycles_word
        Index of the output word that contains the number of cycles of the run.
    cycles
        Expected number of cycles per step, if cycles are counted.
    checks
        ``((output word, value after CHECK_STEPS steps), ...)``.
    tolerance
        Relative tolerance for those values.
    """

    key: str
    entry: str
    grid: int
    block: int
    parameters: tuple[int, ...]
    seconds: float
    input: int = 0
    advance: tuple[int, int, int] | None = None
    launches: bool = False
    cycles_word: int | None = None
    cycles: float = 0.0
    checks: tuple[tuple[int, float], ...] = ()
    tolerance: float = 0.0
    output_dtype: Literal["int32", "float32"] = "int32"

    @property
    def threads(self) -> int:
        """Total number of threads."""
        return self.grid * self.block


@dataclass(frozen=True)
class ProbePlan:
    """All cases of one probe, their shared buffers, and the source of their kernels.

    Parameters
    ----------
    source
        Complete CUDA C or HIP C++ source.
    inputs
        Input buffers; a case uses one.
    output_words
        Size of the output buffer in 32-bit words.
    cases
        Cases in execution order.
    arch
        Architecture to build for, if it is not the device's own (``"sm_90a"``).
    """

    name: str
    source: str
    inputs: tuple[BufferContents, ...]
    output_words: int
    cases: tuple[ProbeCase, ...]
    arch: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return {k: v for k, v in asdict(self).items() if k != "arch" or v}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ProbePlan:
        """Build a plan from JSON data; lists become tuples."""
        inputs = tuple(BufferContents(**{**c, "values": tuple(c["values"])}) for c in data["inputs"])
        cases = tuple(
            ProbeCase(**{
                **c, "parameters": tuple(c["parameters"]), "checks": tuple((w, v) for w, v in c["checks"]),
                "advance": None if c["advance"] is None else tuple(c["advance"]),
            })
            for c in data["cases"]
        )  # fmt: skip
        return cls(**{**data, "inputs": inputs, "cases": cases})

    @property
    def key(self) -> str:
        """SHA-256 of the plan, which identifies the results measured for it."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()
