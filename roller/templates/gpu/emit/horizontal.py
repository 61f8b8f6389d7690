"""Sources of GPU kernels put together, so that one launch runs several of them: text in, text out.

Every program becomes a device function whose block number and scratchpad are parameters; the kernel picks program and
arrays by its block number from a table (:mod:`roller.horizontal`). Equal programs are one function. What a program may
do is decided by its text and its launch, never by what it computes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from roller.artifact import KernelArtifact, Launch
from roller.errors import BuildError
from roller.hardware.architectures import cuda_architecture
from roller.horizontal import TABLE_BYTES, HorizontalKernel, Member, Stage
from roller.targets import target_of_language

_KERNEL = 'extern "C" __global__'
_HEAD = re.compile(
    r'extern "C" __global__ void (?:__launch_bounds__\([\d, ]+\) )?(?P<name>\w+)\((?P<parameters>.*?)\) \{\n'
)
_ALIGN = r"(?:alignas|__attribute__\(\(aligned|__align__)\((\d+)\)*"
_STATIC = re.compile(rf"__shared__ {_ALIGN} ([\w ]+?) (\w+)\[(\d+)\];")
_DYNAMIC = re.compile(rf"extern __shared__ {_ALIGN} ([\w ]+?) (\w+)\[\];")
#: Bytes of the types that tiles in the scratchpad have; another one keeps its kernel out of packs.
_BYTES = {
    "float": 4, "double": 8, "half": 2, "nv_bfloat16": 2, "__nv_bfloat16": 2, "hip_bfloat16": 2, "int": 4, "uint": 4,
    "unsigned": 4, "unsigned int": 4, "signed char": 1, "char": 1, "uchar": 1, "unsigned char": 1, "short": 2,
    "ushort": 2, "unsigned short": 2, "int64_t": 8, "long": 8, "long long": 8, "bool": 1, "int8_t": 1, "uint8_t": 1,
    "int16_t": 2, "uint16_t": 2, "int32_t": 4, "uint32_t": 4, "uint64_t": 8, "longlong": 8, "ulonglong": 8,
}  # fmt: skip
#: First architecture whose barriers wait for threads that have not left only, and that reads a table where it lies.
_OLDEST = 70
#: What counts on the whole grid, on a block of its own size, or on the scratchpad's own place.
_UNFIT = (
    (r"\bblockIdx\.[yz]\b|\bgridDim\b|\bblockDim\b", "its blocks are numbered in more than one dimension"),
    (r"\bwgmma\b|\bmbarrier\b|\bcluster\b|\bsetmaxnreg\b", "its warps are groups of a whole block"),
    (r"\bcooperative_groups\b|\bgrid_sync\b|\breturn;", "its blocks or threads wait for others in their own way"),
)  # fmt: skip


@dataclass(frozen=True)
class _Program:
    """A kernel's text as a function: its parameters ``(type, name)``, body, scratchpad (bytes) and its alignment."""

    parameters: tuple[tuple[str, str], ...]
    body: str
    shared_bytes: int
    alignment: int


def why_not(artifact: KernelArtifact) -> str:
    """Return why a kernel cannot share a launch with others; empty where it can."""
    if not target_of_language(artifact.language, artifact.expression.name).kind.blocks:
        return "it is no kernel of a GPU"
    if any(n != 1 for launch in artifact.launches for n in launch.grid[1:]):
        return "its blocks are numbered in more than one dimension"
    if 0 < cuda_architecture(str(artifact.target["arch"])) < _OLDEST:
        return f"its device is older than sm_{_OLDEST}, where a barrier may wait for threads that have left"
    text = artifact.source
    for pattern, reason in _UNFIT:
        if re.search(pattern, text[text.index(_KERNEL) :]):
            return reason
    try:
        for launch in artifact.launches:
            _program(launch)
    except BuildError as err:
        return str(err)
    return ""


def stages_of(artifact: KernelArtifact) -> tuple[int, ...]:
    """Return the stage of every launch of a kernel: the first, or one behind the last it shares something written with.

    Launches for several outputs of one kernel are one stage; a product in parts and their sum are two.
    """
    written = {a.name for a in artifact.arguments if a.role in ("output", "workspace")}
    out: list[int] = []
    for n, launch in enumerate(artifact.launches):
        mine = written & set(launch.arguments)
        before = (out[i] + 1 for i in range(n) if mine & set(artifact.launches[i].arguments))
        out.append(max(before, default=0))
    return tuple(out)


def largest_capacity(artifacts: Sequence[KernelArtifact]) -> int:
    """Return how many argument sets of each of these kernels fit the table of a launch."""
    most: dict[int, int] = {}
    for artifact in artifacts:
        for stage, launch in zip(stages_of(artifact), artifact.launches, strict=True):
            most[stage] = most.get(stage, 0) + len(launch.arguments)
    return (TABLE_BYTES - 8 * sum(len(a.launches) for a in artifacts)) // (8 * max(most.values()))


def fits(artifacts: Mapping[str, KernelArtifact], capacity: Mapping[str, int]) -> bool:
    """Whether the tables of a pack have room for so many argument sets of each kernel."""
    table_bytes: dict[int, int] = {}
    for key, count in capacity.items():
        for stage, launch in zip(stages_of(artifacts[key]), artifacts[key].launches, strict=True):
            table_bytes[stage] = table_bytes.get(stage, 0) + 8 * (1 + count * len(launch.arguments))
    return max(table_bytes.values(), default=0) <= TABLE_BYTES


def pack(
    artifacts: Mapping[str, KernelArtifact], capacity: Mapping[str, int], name: str = "packed"
) -> HorizontalKernel:
    """Put kernels together.

    Notes
    -----
    A block has the most threads of any program; those a program has not leave before anything else. From sm_70 on a
    barrier waits for threads that have not exited (CUDA C++ Programming Guide, *Independent Thread Scheduling*), as
    ``s_barrier`` does for wavefronts that have not ended (AMD's instruction set manuals).
    """
    first = next(iter(artifacts.values()))
    for key, artifact in artifacts.items():
        reason = why_not(artifact)
        if reason or (artifact.language, artifact.target) != (first.language, first.target):
            raise BuildError(f"pack: {key}: {reason or 'it is for another target than the others'}.")
    depth = 1 + max(n for a in artifacts.values() for n in stages_of(a))
    made = [_stage(artifacts, capacity, n, name) for n in range(depth)]
    preludes = (x.source[: x.source.index(_KERNEL)] for a in artifacts.values() for x in a.launches)
    source = _merged(preludes) + target_of_language(first.language, name).undefined + "".join(text for _, text in made)
    return HorizontalKernel(first.language, dict(first.target), source, tuple(stage for stage, _ in made))


def _stage(
    artifacts: Mapping[str, KernelArtifact], capacity: Mapping[str, int], number: int, name: str
) -> tuple[Stage, str]:
    """Return one launch and its text."""
    members, programs = [], []
    for key, artifact in artifacts.items():
        for n, (stage, launch) in enumerate(zip(stages_of(artifact), artifact.launches, strict=True)):
            if stage == number:
                programs.append(_program(launch))
                threads = math.prod(launch.block)
                members.append(Member(key, n, launch.grid[0], threads, capacity[key], launch.arguments))
    shared = max(p.shared_bytes for p in programs)
    made = Stage(f"{name}_{number}", max(m.threads for m in members), shared, tuple(members))
    functions = "".join(_function(p, f"{number}_{n}") for n, p in enumerate(programs))
    return made, _table(made, programs, number) + functions + _kernel(made, programs, number)


def _table(stage: Stage, programs: Sequence[_Program], number: int) -> str:
    """Return the table's type: a pointer per argument set for every parameter, and where each program's blocks end."""
    pairs = enumerate(zip(stage.members, programs, strict=True))
    lines = [f"  {kind}* p{n}_{name}[{m.capacity}];" for n, (m, p) in pairs for kind, name in p.parameters]
    return "\n".join((f"struct roller_table_{number} {{", *lines, f"  unsigned end[{len(programs)}];", "};\n"))


def _function(program: _Program, suffix: str) -> str:
    parameters = ", ".join(f"{kind}* __restrict__ {name}" for kind, name in program.parameters)
    scratchpad = ", unsigned char* roller_scratchpad" if program.shared_bytes else ""
    head = f"static __device__ __forceinline__ void roller_program_{suffix}"
    return f"{head}({parameters}, const unsigned roller_block{scratchpad}) {{\n{program.body}}}\n"


def _kernel(stage: Stage, programs: Sequence[_Program], number: int) -> str:
    """Return the kernel: one branch per program, the same for all threads of a block."""
    lines = [f'extern "C" __global__ void __launch_bounds__({stage.threads}) {stage.entry}'
             f"(const __grid_constant__ roller_table_{number} table) {{"]  # fmt: skip
    if stage.dynamic_shared_bytes:
        align = max(p.alignment for p in programs)
        lines.append(f"  extern __shared__ __align__({align}) unsigned char roller_scratchpad[];")
    lines.append("  const unsigned block = blockIdx.x;")
    for n, (member, program) in enumerate(zip(stage.members, programs, strict=True)):
        last = n == len(programs) - 1
        lines.append("  {" if last else f"  if (block < table.end[{n}]) {{")
        if member.threads < stage.threads:
            lines.append(f"    if (threadIdx.x >= {member.threads}u) return;")
        first = f" - table.end[{n - 1}]" if n else ""
        lines.append(f"    const unsigned mine = block{first}, of = mine / {member.blocks}u;")
        given = ", ".join(f"table.p{n}_{name}[of]" for _, name in program.parameters)
        scratchpad = ", roller_scratchpad" if program.shared_bytes else ""
        lines.append(f"    roller_program_{number}_{n}({given}, mine - of * {member.blocks}u{scratchpad});")
        lines.append("  }" if last else "    return;\n  }")
    return "\n".join((*lines, "}\n"))


def _program(launch: Launch) -> _Program:
    """Return a launch's kernel as a function."""
    head = next((m for m in _HEAD.finditer(launch.source) if m["name"] == launch.entry), None)
    if head is None:
        raise BuildError(f"its source has no kernel '{launch.entry}' of the usual form")
    body = launch.source[head.end() : launch.source.index("\n}", head.end()) + 1]
    body, size, alignment = _scratchpad(body, launch.dynamic_shared_bytes)
    parameters = []
    for text in head["parameters"].split(","):
        found = re.fullmatch(r"\s*((?:const )?[\w ]+?)\s*\*\s*(?:__restrict__ )?(\w+)", text)
        if found is None:
            raise BuildError(f"its parameter '{text.strip()}' is no pointer")
        parameters.append((found[1], found[2]))
    body = _linear(body.replace("blockIdx.x", "roller_block"), launch.block)
    return _Program(tuple(parameters), body, size, alignment)


def _linear(body: str, block: tuple[int, int, int]) -> str:
    """Return a body whose threads are numbered in one dimension, as those of a pack are."""
    if block[1:] == (1, 1):
        return body
    x, y, _ = block
    number = {"x": f"threadIdx.x % {x}u", "y": f"threadIdx.x / {x}u % {y}u", "z": f"threadIdx.x / {x * y}u"}
    lines = [f"  const unsigned roller_{c} = {number[c]};\n" for c in "xyz" if f"threadIdx.{c}" in body]
    return "".join(lines) + re.sub(r"\bthreadIdx\.([xyz])", r"roller_\1", body)


def _scratchpad(body: str, dynamic_bytes: int) -> tuple[str, int, int]:
    """Return a body whose arrays lie in one scratchpad, with the bytes and the alignment of that."""
    size, widest = 0, 16

    def static(m: re.Match[str]) -> str:
        nonlocal size, widest
        align, kind, name, count = int(m[1]), m[2], m[3], int(m[4])
        start = -(-size // align) * align
        size, widest = start + _bytes_of(kind) * count, max(widest, align)
        return f"{kind}* {name} = ({kind}*)(roller_scratchpad + {start});"

    def dynamic(m: re.Match[str]) -> str:
        nonlocal widest
        widest = max(widest, int(m[1]))
        return f"{m[2]}* {m[3]} = ({m[2]}*)roller_scratchpad;"

    dynamics = len(_DYNAMIC.findall(body))
    body = _STATIC.sub(static, _DYNAMIC.sub(dynamic, body))
    if "__shared__" in body or dynamics > 1 or (dynamics and size):
        raise BuildError("its scratchpad is declared in an unusual way")
    return body, size or (dynamic_bytes if dynamics else 0), widest


def _bytes_of(kind: str) -> int:
    """Return the bytes of a type, of a vector of one too."""
    vector = None if kind in _BYTES else re.fullmatch(r"(\w+?)([1248])", kind)
    element = vector[1] if vector else kind
    if element not in _BYTES:
        raise BuildError(f"its scratchpad holds elements of type '{kind}'")
    return _BYTES[element] * (int(vector[2]) if vector else 1)


def _merged(preludes: Iterable[str]) -> str:
    """Return what stands ahead of kernels, every declaration once; each prelude is complete and in order by itself."""
    units: dict[str, None] = {}
    for prelude in dict.fromkeys(preludes):
        for unit in _units(prelude):
            units.setdefault(unit)
    return "".join(units)


def _units(text: str) -> list[str]:
    """Return the top-level declarations of a prelude: a conditional with all it holds, a directive, or a definition."""
    out: list[str] = []
    unit, depth, conditionals = "", 0, 0
    for line in text.splitlines(keepends=True):
        plain = line.strip()
        if not plain and not unit:
            continue
        unit += line
        conditionals += plain.startswith("#if") - plain.startswith("#endif")
        depth += line.count("{") - line.count("}")
        whole = plain.endswith((";", "}")) or (plain.startswith(("#", "//")) and not plain.endswith("\\"))
        if whole and depth == 0 and conditionals == 0:
            out.append(unit)
            unit = ""
    return [*out, unit] if unit.strip() else out
