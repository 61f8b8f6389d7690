"""Fragment: one instruction of a matrix unit, as a specification names it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

#: Instruction families.
FAMILIES = ("wmma", "mma", "wgmma", "mfma", "amp")
#: Those of them that a template lowers, and the dtypes of operands it does so for; all others are priced only.
LOWERED, LOWERED_OPERANDS = ("mma", "wmma", "wgmma"), ("float16", "bfloat16", "int8")
#: Stages from which on products of two reduction steps run at the same time, where the instruction is asynchronous.
OVERLAPPED_STAGES = 3


@dataclass(frozen=True)
class Fragment:
    """A matrix instruction ``D[m, n] += A[m, k] * B[k, n]`` that several threads execute together.

    Parameters
    ----------
    name
        Family, shape, operand and accumulator: ``"mma.m16n8k16.f16.f32"``.
    m, n, k
        Extents (elements); tiles of a TEU are multiples of them.
    operand, accumulator
        Dtypes of A and B, and of D.
    threads
        Threads that execute it together: those of one TEU, or of several (a warp group).
    rate
        Instruction class of its throughput in ``compute.ops_per_cycle_per_unit``: ``"matrix"`` or ``"group_matrix"``.
    arch
        Architecture its kernels must be built for, where that is not the device's own (``"sm_90a"``).
    instructions
        Machine instructions that the device makes of it.
    operand_copies
        Times that the threads together hold every element of A and B.

    Notes
    -----
    What a family says (who reads operands, whether lanes are known) is the instruction set's word, the same on every
    device that has it. What a device decides is a field.

    Examples
    --------
    >>> Fragment("mma.m16n8k16.f16.f32", 16, 8, 16, "float16", "float32", 32).family
    'mma'
    """

    name: str
    m: int
    n: int
    k: int
    operand: str
    accumulator: str
    threads: int
    rate: str = "matrix"
    arch: str = ""
    instructions: int = 1
    operand_copies: int = 1

    @property
    def family(self) -> str:
        """Instruction family: the part of the name before its first dot."""
        return self.name.partition(".")[0]

    @property
    def emitted(self) -> bool:
        """Whether kernels are generated with it; else programs of it are constructed and priced only.

        Examples
        --------
        >>> [Fragment(n, 16, 16, 16, "float16", "float32", 64).emitted for n in ("mma.m16", "mfma.m16")]
        [True, False]
        """
        return self.family in LOWERED and self.operand in LOWERED_OPERANDS

    @property
    def reads_scratchpad(self) -> bool:
        """Whether the instruction reads its operands from scratchpad by itself, and runs beside what follows it."""
        return self.family == "wgmma"

    @property
    def knows_lanes(self) -> bool:
        """Whether lanes load rows of the operands by addresses of their own, and it is known which result is whose.

        ``wmma`` leaves both to the device: its operands have a pitch, its results are spread over scratchpad.
        """
        return self.family in ("mma", "mfma")

    @property
    def row_bytes(self) -> int:
        """Bytes that rows of an operand's tile in scratchpad must be a multiple of.

        What lanes address themselves are rows of 16 bytes. ``wmma`` wants every row to start at a multiple of a lane's
        share of an operand's fragment: eight registers, 32 bytes, so that a pitch is a multiple of 16 halves (PTX ISA,
        *Warp-level matrix storage: strides*; CUDA's own ``ldm`` of eight halves is less).
        """
        return 16 if self.knows_lanes else 32

    def running_steps(self, stages: int) -> int:
        """Return how many reduction steps' products still run as those of the next step start."""
        return int(self.reads_scratchpad and stages >= OVERLAPPED_STAGES)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data; ``Fragment(**data)`` is the inverse."""
        given = asdict(self)
        left_out = {"arch": "", "instructions": 1, "operand_copies": 1}
        return {k: v for k, v in given.items() if k not in left_out or v != left_out[k]}
