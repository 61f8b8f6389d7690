"""Fragment: one instruction of a matrix unit, as a specification names it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from roller.core.dtypes import DTYPE_BYTES

#: Instruction families.
FAMILIES = ("wmma", "mma", "wgmma", "mfma", "amp", "vnni", "madd", "amx")
#: Classes of their throughput.
RATES = ("matrix", "group_matrix", "dot")
#: Those of them that a template lowers, and the dtypes of operands it does so for; all others are priced only.
LOWERED, LOWERED_OPERANDS = ("mma", "wmma", "wgmma", "vnni", "madd", "amx"), (
    "float16", "bfloat16", "int8", "int16",
)  # fmt: skip
#: Stages from which on products of two reduction steps run at the same time, where the instruction is asynchronous.
OVERLAPPED_STAGES = 3


@dataclass(frozen=True)
class Fragment:
    """A matrix instruction ``D[m, n] += A[m, k] * B[k, n]`` that several threads, or one core, execute.

    The dot products of a CPU are one, too: ``vpdpbusd`` adds to 16 sums of 32 bits the products of four bytes of A, the
    same for all sums, and four bytes of B each; one of A and B is signed (Intel SDM, volume 2). ``vpmaddwd`` multiplies
    pairs of 16 bits, and an addition follows; bytes of either sign are widened for it.

    Parameters
    ----------
    name
        Family, shape, operand and accumulator: ``"mma.m16n8k16.f16.f32"``.
    m, n, k
        Extents (elements); tiles of a TEU are multiples of them.
    operand, accumulator
        Dtypes of A and B, and of D; ``int8`` of a CPU is for bytes of either sign, ``int16`` for bytes that panels
        and boxes hold in 16 bits.
    threads
        Threads that execute it together: those of one TEU, or of several (a warp group); 1 on a CPU.
    rate
        Instruction class of its throughput in ``compute.ops_per_cycle_per_unit``: ``"matrix"``, ``"group_matrix"`` or
        ``"dot"``.
    arch
        Architecture its kernels must be built for, where that is not the device's own (``"sm_90a"``); of a CPU the
        feature of the processor, as LLVM names it, and the device has it where its target lists it.
    instructions
        Machine instructions that the device makes of it.
    operand_copies
        Times that the threads together hold every element of A and B.
    latency_cycles
        Cycles until a next instruction can add to the same sums; 0: those of any multiply-add.

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
    latency_cycles: int = 0

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
    def is_constructed(self) -> bool:
        """Whether our own programs are constructed with it: it is emitted, or pipes would have to widen its operands.

        Libraries have kernels of every instruction.

        Examples
        --------
        >>> [Fragment("mfma.m16", 16, 16, 4, d, "float32", 64).is_constructed for d in ("float16", "float32")]
        [True, False]
        """
        return self.emitted or DTYPE_BYTES.get(self.operand, 4) < 4

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

    @property
    def takes_any_signs(self) -> bool:
        """Whether it is exact for every pair of signs of its operands' bytes."""
        return self.family == "amx" or self.widens

    @property
    def widens(self) -> bool:
        """Whether bytes are brought to the operand's own, wider dtype where they are packed."""
        return self.family == "madd"

    def held_dtype(self, stored: str) -> str:
        """Return the dtype that panels and boxes of a CPU hold an operand in that is stored as ``stored``.

        Examples
        --------
        >>> vnni = Fragment("vnni.m1n8k4.i8.i32", 1, 8, 4, "int8", "int32", 1)
        >>> madd = Fragment("madd.m1n8k2.i16.i32", 1, 8, 2, "int16", "int32", 1)
        >>> vnni.held_dtype("uint8"), madd.held_dtype("uint8")
        ('uint8', 'int16')
        """
        return self.operand if self.widens else stored

    def depth(self, extent: int) -> int:
        """Return the elements along k that one instruction takes of ``extent``: fewer where that leaves no rest.

        Examples
        --------
        >>> amx = Fragment("amx.m16n16k64.i8.i32", 16, 16, 64, "int8", "int32", 1)
        >>> [amx.depth(n) for n in (768, 96, 16, 100, 3)]
        [64, 48, 16, 64, 4]
        """
        word = 4 // DTYPE_BYTES[self.operand]
        if extent <= self.k:
            return min(self.k, -(-extent // word) * word)
        whole = [d for d in range(self.k, self.k // 2, -word) if extent % d == 0]
        return whole[0] if whole else self.k

    def running_steps(self, stages: int) -> int:
        """Return how many reduction steps' products still run as those of the next step start."""
        return int(self.reads_scratchpad and stages >= OVERLAPPED_STAGES)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data; ``Fragment(**data)`` is the inverse."""
        given = asdict(self)
        left_out = {"arch": "", "instructions": 1, "operand_copies": 1, "latency_cycles": 0}
        return {k: v for k, v in given.items() if k not in left_out or v != left_out[k]}
