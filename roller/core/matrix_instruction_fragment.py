"""Fragment: one matrix instruction, as a device specification lists it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from roller_runtime.core.dtypes import DTYPE_BYTES

#: Instruction families.
FAMILIES = ("wmma", "mma", "wgmma", "mfma", "amp", "vnni", "madd", "amx")
#: Throughput classes.
RATES = ("matrix", "group_matrix", "dot")
#: Families and operand dtypes that templates lower; all others are only priced.
LOWERED, LOWERED_OPERANDS = ("mma", "wmma", "wgmma", "vnni", "madd", "amx"), (
    "float16", "bfloat16", "int8", "int16",
)  # fmt: skip
#: Minimum number of pipeline stages at which asynchronous products of two reduction steps overlap.
OVERLAPPED_STAGES = 3


@dataclass(frozen=True)
class Fragment:
    """A matrix instruction ``D[m, n] += A[m, k] * B[k, n]`` that several threads, or one core, execute together.

    CPU dot products are included: ``vpdpbusd`` (``vnni``) adds four products of bytes to each of 16 32-bit sums, with
    one signed operand (Intel SDM, volume 2); ``vpmaddwd`` (``madd``) multiplies pairs of 16-bit values, so bytes are
    widened. The family determines the properties that the instruction set defines; fields contain device-dependent
    properties.

    >>> Fragment("mma.m16n8k16.f16.f32", 16, 8, 16, "float16", "float32", 32).family
    'mma'
    """

    name: str  #: Family, shape, operand and accumulator: ``"mma.m16n8k16.f16.f32"``
    #: Extents in elements; tiles of a TEU are multiples of them.
    m: int
    n: int
    k: int
    #: Dtypes of A and B, and of D. On a CPU, ``int8`` takes bytes of either sign; ``int16`` takes widened bytes.
    operand: str
    accumulator: str
    threads: int  #: Number of threads that execute it together: one TEU, or several (a warp group); 1 on a CPU
    #: Instruction class in ``compute.ops_per_cycle_per_unit``: ``"matrix"``, ``"group_matrix"`` or ``"dot"``.
    rate: str = "matrix"
    #: Required build target where it differs from the device's (``"sm_90a"``); on a CPU, LLVM's feature name.
    arch: str = ""
    instructions: int = 1  #: Number of machine instructions per fragment
    operand_copies: int = 1  #: Number of copies of every element of A and B across the threads
    latency_cycles: int = 0  #: Cycles until a dependent accumulation can start; 0: the latency of any multiply-add

    @property
    def family(self) -> str:
        """Instruction family: the part of the name before its first dot."""
        return self.name.partition(".")[0]

    @property
    def emitted(self) -> bool:
        """Whether kernels are generated with it; if not, its programs are only constructed and priced.

        >>> [Fragment(n, 16, 16, 16, "float16", "float32", 64).emitted for n in ("mma.m16", "mfma.m16")]
        [True, False]
        """
        return self.family in LOWERED and self.operand in LOWERED_OPERANDS

    @property
    def is_constructed(self) -> bool:
        """Whether programs are constructed with it: it is emitted, or its operands are narrower than 4 bytes.

        >>> [Fragment("mfma.m16", 16, 16, 4, d, "float32", 64).is_constructed for d in ("float16", "float32")]
        [True, False]
        """
        return self.emitted or DTYPE_BYTES.get(self.operand, 4) < 4

    @property
    def reads_scratchpad(self) -> bool:
        """Whether the instruction reads operands from the scratchpad and runs asynchronously."""
        return self.family == "wgmma"

    @property
    def has_defined_lanes(self) -> bool:
        """Whether lanes address operand rows themselves and the lane of each result is defined (not ``wmma``)."""
        return self.family in ("mma", "mfma")

    @property
    def row_bytes(self) -> int:
        """Required alignment in bytes of an operand's rows in the scratchpad."""
        # wmma: a row starts at a multiple of a lane's share of the fragment, eight registers or 32 bytes (PTX ISA,
        # Warp-level matrix storage: strides); CUDA's own ldm of eight halves is less.
        return 16 if self.has_defined_lanes else 32

    @property
    def accepts_any_signs(self) -> bool:
        """Whether the instruction is exact for every combination of signed and unsigned bytes."""
        return self.family == "amx" or self.widens_operands

    @property
    def widens_operands(self) -> bool:
        """Whether packing widens bytes to the operand's dtype."""
        return self.family == "madd"

    def packed_dtype(self, stored: str) -> str:
        """Return the dtype of CPU panels and boxes for an operand that is stored as ``stored``.

        >>> vnni = Fragment("vnni.m1n8k4.i8.i32", 1, 8, 4, "int8", "int32", 1)
        >>> madd = Fragment("madd.m1n8k2.i16.i32", 1, 8, 2, "int16", "int32", 1)
        >>> vnni.packed_dtype("uint8"), madd.packed_dtype("uint8")
        ('uint8', 'int16')
        """
        return self.operand if self.widens_operands else stored

    def depth(self, extent: int) -> int:
        """Return the number of elements along k per instruction: fewer than ``k`` if that divides ``extent`` evenly.

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
        """Return how many earlier reduction steps still run when the next one starts."""
        return int(self.reads_scratchpad and stages >= OVERLAPPED_STAGES)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data; ``Fragment(**data)`` is the inverse."""
        given = asdict(self)
        left_out = {"arch": "", "instructions": 1, "operand_copies": 1, "latency_cycles": 0}
        return {k: v for k, v in given.items() if k not in left_out or v != left_out[k]}
