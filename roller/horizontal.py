"""HorizontalKernel: several block programs behind one launch, each for any number of argument sets up to a bound.

Small independent kernels cost more to start than to run. A packed kernel has the code of each program once; which
blocks run which program, and on which arrays, stands in a table that the launch passes by value. So ten cells of a
recurrent network are one launch, whatever weights they have, and one kernel serves every number of them.
"""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from roller.errors import ArtifactError

#: Bytes of arguments any launch may have: 4 KB on every CUDA device, less than HIP allows.
TABLE_BYTES = 4096
_POINTER, _NUMBER = struct.Struct("<Q"), struct.Struct("<I")


@dataclass(frozen=True)
class Member:
    """One block program of a stage.

    Parameters
    ----------
    kernel
        Key of the kernel it is a launch of.
    launch
        Which of that kernel's launches.
    blocks
        Blocks per argument set.
    threads
        Threads of a block that take part; the others leave at once.
    capacity
        Argument sets the table has room for.
    arguments
        Names of the kernel's arguments, in the order of its parameters.
    """

    kernel: str
    launch: int
    blocks: int
    threads: int
    capacity: int
    arguments: tuple[str, ...]


@dataclass(frozen=True)
class Stage:
    """One launch.

    Parameters
    ----------
    entry
        Function of the source.
    threads
        Of a block: the most of any member.
    dynamic_shared_bytes
        Scratchpad of a block: the most of any member.
    members
        Programs, in the order of their blocks.
    """

    entry: str
    threads: int
    dynamic_shared_bytes: int
    members: tuple[Member, ...]

    @property
    def table_bytes(self) -> int:
        """Bytes of the table that is passed to the kernel."""
        pointers = sum(m.capacity * len(m.arguments) for m in self.members)
        return 8 * pointers + -(-4 * len(self.members) // 8) * 8

    def grid(self, counts: Sequence[int]) -> int:
        """Return the blocks of a launch with so many argument sets of each member."""
        return sum(m.blocks * n for m, n in zip(self.members, counts, strict=True))

    def ends(self, counts: Sequence[int]) -> list[int]:
        """Return, for each member, the number of the first block behind its own."""
        return [self.grid([*counts[: n + 1], *[0] * (len(counts) - n - 1)]) for n in range(len(counts))]

    def runs(self, counts: Mapping[str, int]) -> bool:
        """Whether there is anything to do for so many argument sets, by key."""
        return any(counts.get(m.kernel, 0) for m in self.members)

    def table(self, addresses: Sequence[Sequence[Mapping[str, int]]]) -> bytes:
        """Return the table of a launch.

        Examples
        --------
        >>> stage = Stage("k", 32, 0, (Member("a", 0, 4, 32, 2, ("x", "y")),))
        >>> struct.unpack("<4Q2I", stage.table([[{"x": 7, "y": 9}]]))  # room for two, the first of four blocks
        (7, 0, 9, 0, 4, 0)
        """
        out = bytearray()
        for member, sets in zip(self.members, addresses, strict=True):
            if len(sets) > member.capacity:
                raise ArtifactError(f"{self.entry}: expected at most {member.capacity} argument sets, got {len(sets)}.")
            empty = [0] * (member.capacity - len(sets))
            for name in member.arguments:
                out += b"".join(map(_POINTER.pack, [*(s[name] for s in sets), *empty]))
        out += b"".join(map(_NUMBER.pack, self.ends([len(sets) for sets in addresses])))
        return bytes(out.ljust(self.table_bytes, b"\0"))


@dataclass(frozen=True)
class HorizontalKernel:
    """Programs that are launched together.

    Parameters
    ----------
    language, target
        As of the artifacts it was made of.
    source
        All stages.
    stages
        Launches in order: each reads what those before it have written.
    binary
        Built image, or ``None``.
    build
        What the compiler reported.
    """

    language: str
    target: Mapping[str, Any]
    source: str = field(repr=False)
    stages: tuple[Stage, ...]
    binary: bytes | None = field(default=None, repr=False)
    build: Mapping[str, Any] = field(default_factory=dict)

    @property
    def capacity(self) -> dict[str, int]:
        """How many runs of each kernel it has room for, by key."""
        return {m.kernel: m.capacity for stage in self.stages for m in stage.members}

    def with_binary(self, binary: bytes, **build: Any) -> HorizontalKernel:
        """Return a copy that carries the built image and what the build reported."""
        return replace(self, binary=binary, build={**self.build, **build})

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        body = {**asdict(self), "target": dict(self.target), "build": dict(self.build)}
        binary = None if self.binary is None else base64.b64encode(zlib.compress(self.binary)).decode("ascii")
        return {**body, "binary": binary}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], where: str = "packed kernel") -> HorizontalKernel:
        """Rebuild what :meth:`to_dict` gave."""
        try:
            stages = tuple(
                Stage(str(s["entry"]), int(s["threads"]), int(s["dynamic_shared_bytes"]),
                      tuple(Member(**{**m, "arguments": tuple(m["arguments"])}) for m in s["members"]))
                for s in data["stages"]
            )  # fmt: skip
            binary = None if data["binary"] is None else zlib.decompress(base64.b64decode(data["binary"]))
            return cls(str(data["language"]), dict(data["target"]), str(data["source"]), stages, binary,
                       dict(data["build"]))  # fmt: skip
        except (KeyError, TypeError, ValueError, zlib.error) as err:
            raise ArtifactError(f"{where}: a field is missing or malformed ({err!r}). Copy it again.") from err
