"""KernelArtifact: everything needed to build, launch and explain one kernel without TVM.

An artifact file is a JSON document; if the artifact holds constants, a header precedes it and their bytes follow it.
Each version reads all earlier formats and refuses newer ones.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from roller.errors import MALFORMED, ArtifactError, shown
from roller.expr import TensorExpr
from roller.expr.serialize import expr_from_dict, expr_to_dict
from roller.tile import RProgram
from roller_runtime.core.display import one_line_repr
from roller_runtime.core.files import read_file, write_atomically
from roller_runtime.core.kernel_argument import Argument
from roller_runtime.core.validation import validate_path as path_of

FORMAT_VERSION = 3
#: Earlier formats, written where they suffice so that earlier versions can read the file. Format 1 has no constants,
#: format 2 has them within the JSON, and in format 3 their bytes follow the JSON.
_FIRST_FORMAT, _INNER_FORMAT = 1, 2
#: Magic number of format 3; the length of the JSON follows (8 bytes, little-endian).
_MAGIC = b"roller kernel\n"
_LENGTH_BYTES = 8
#: Alignment of constants in a file, in bytes.
_ALIGN_BYTES = 64
#: Key of ``build`` for the reason why the measured time is doubtful; absent if the measurement was undisturbed.
DOUBT = "doubt"
#: Key of ``build`` for the reason why valid times could not rank the candidates; absent if they did.
TIED = "tied"


@dataclass(frozen=True)
class Launch:
    """One kernel launch: entry point of ``source``, grid and block (x, y, z), argument names in kernel order."""

    source: str
    entry: str
    arguments: tuple[str, ...]
    grid: tuple[int, int, int] = (1, 1, 1)
    block: tuple[int, int, int] = (1, 1, 1)
    dynamic_shared_bytes: int = 0

    def __repr__(self) -> str:
        return one_line_repr(
            "Launch", f"{self.entry} on {self.grid} blocks of {self.block}", f"{len(self.source):,} bytes"
        )


@dataclass(frozen=True)
class Constant:
    """An input whose values are the same in every call, so that callers do not pass it."""

    position: int  #: Index among the expression's inputs, in call order
    #: Elements in row-major order as the kernel reads them (bfloat16 as bits); ``None`` if the caller holds them, as
    #: in the kernel cache, where one kernel serves all values.
    values: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True)
class KernelArtifact:
    """One lowered kernel and its provenance.

    Parameters
    ----------
    language
        ``"cuda"``, ``"hip"`` or ``"llvm"`` (a CPU library); selects the backend that builds and launches it.
    target
        Build target: ``{"arch": "sm_70"}``, ``{"mcpu": "...", "cores": 2}``.
    device
        Name of the DeviceSpec that the program was constructed for.
    expression
        The user's expression, which gives argument shapes and the float64 reference.
    program
        The rProgram.
    launches, arguments
        See :class:`Launch`, :class:`Argument`; inputs (including constants) are in call order, then outputs, then
        workspace, panels and numbers.
    estimate
        The prediction as plain data (seconds, bottleneck, terms).
    binary
        Built image (CPU shared library, cubin or AMD code object), or ``None`` before the build.
    build
        Results of the build: number of registers, spilled bytes, static scratchpad bytes, build time in seconds.
    measured_s
        Median measured time per call, in seconds; ``None`` if the kernel was not timed.
    constants
        Constant inputs; see :class:`Constant`.
    prepare
        Launch that packs constants into panels once, when the kernel is loaded; ``None`` if nothing is packed.
    """

    language: str
    target: dict[str, Any]
    device: str
    expression: TensorExpr
    program: RProgram
    launches: tuple[Launch, ...]
    arguments: tuple[Argument, ...]
    estimate: dict[str, Any] = field(default_factory=dict)
    binary: bytes | None = None
    build: dict[str, Any] = field(default_factory=dict)
    measured_s: float | None = None
    constants: tuple[Constant, ...] = ()
    prepare: Launch | None = None

    def __repr__(self) -> str:
        built = "not built" if self.binary is None else f"{len(self.binary):,} bytes of code"
        return one_line_repr("KernelArtifact", f"{self.expression.name} for {self.device} ({self.language})", built)

    @property
    def doubt(self) -> str:
        """Reason why the measured time, and the choice based on it, may be wrong; empty if there is none."""
        return str(self.build.get(DOUBT, ""))

    @property
    def tied(self) -> str:
        """Reason why the candidates could not be ranked by their valid times; empty if they could."""
        return str(self.build.get(TIED, ""))

    @property
    def inputs(self) -> tuple[Argument, ...]:
        """Arguments for the expression's inputs in call order, including constants."""
        return tuple(a for a in self.arguments if a.role == "input")

    @property
    def outputs(self) -> tuple[Argument, ...]:
        """Arguments that the kernel writes and returns to the caller."""
        return tuple(a for a in self.arguments if a.role == "output")

    @property
    def source(self) -> str:
        """Sources of all launches, in order."""
        return "\n".join(dict.fromkeys(launch.source for launch in self.launches))

    def with_binary(self, binary: bytes, **build: Any) -> KernelArtifact:
        """Return a copy with the built image and the results of the build."""
        return replace(self, binary=binary, build={**self.build, **build})

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data with a checksum."""
        body = {
            "format_version": _INNER_FORMAT if self.constants else _FIRST_FORMAT,
            "language": self.language,
            "target": self.target,
            "device": self.device,
            "expression": expr_to_dict(self.expression),
            "program": self.program.to_dict(),
            "launches": [_launch_to_dict(x) for x in self.launches],
            "arguments": [[a.name, a.role, list(a.shape), a.dtype] for a in self.arguments],
            "estimate": self.estimate,
            "binary": _encode_base64(None if self.binary is None else zlib.compress(self.binary)),
            "build": self.build,
            "measured_s": self.measured_s,
        }
        if self.constants:
            body["constants"] = [[c.position, _encode_base64(c.values)] for c in self.constants]
            body["prepare"] = _launch_to_dict(self.prepare) if self.prepare is not None else None
        return {**body, "checksum": _checksum(body)}

    @classmethod
    def from_dict(cls, data: dict[str, Any], where: str = "artifact") -> KernelArtifact:
        """Return the artifact described by JSON data; ``where`` names the file in error messages.

        Raises
        ------
        ArtifactError
            If the data are damaged, incomplete, or in a newer format.
        """
        version = data.get("format_version") if isinstance(data, dict) else None
        if not isinstance(version, int) or isinstance(version, bool):
            raise ArtifactError(f"{where}: expected a roller artifact, found no format_version. Save it again.")
        if version > FORMAT_VERSION:
            raise ArtifactError(
                f"{where}: expected format {FORMAT_VERSION} or older, got {shown(version)}. Upgrade roller to load it."
            )
        body = {k: v for k, v in data.items() if k != "checksum"}
        try:
            if data.get("checksum") != _checksum(body):
                text = f"{where}: checksum does not match; the file is damaged. Compile and save it again."
                raise ArtifactError(text)
            return cls(
                body["language"],
                body["target"],
                body["device"],
                expr_from_dict(body["expression"]),
                RProgram.from_dict(body["program"]),
                tuple(_launch_from_dict(x) for x in body["launches"]),
                tuple(Argument(n, r, tuple(s), d) for n, r, s, d in body["arguments"]),
                body["estimate"],
                zlib.decompress(base64.b64decode(body["binary"])) if body["binary"] is not None else None,
                body["build"],
                body["measured_s"],
                tuple(Constant(n, None if v is None else base64.b64decode(v)) for n, v in body.get("constants", ())),
                _launch_from_dict(body["prepare"]) if body.get("prepare") is not None else None,
            )
        except ArtifactError:
            raise
        except (*MALFORMED, ValueError, zlib.error) as err:
            text = f"{where}: a field is missing or malformed ({err!r}). Compile and save it again."
            raise ArtifactError(text) from err

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the artifact atomically as JSON, followed by the bytes of its constants.

        Raises
        ------
        ArtifactError
            If the path cannot be written.
        """
        target = path_of(path, "path", error=ArtifactError)
        parts = self._file_parts()  # errors here come before the file is created
        try:
            with write_atomically(target) as file:
                for part in parts:
                    file.write(part)
        except OSError as err:
            raise ArtifactError(f"{target}: cannot write ({err.strerror}). Choose a writable path.") from err
        return target

    def _file_parts(self) -> list[bytes]:
        """Return the parts of the file; without constants, the file is plain JSON, which every version reads."""
        if all(c.values is None for c in self.constants):
            return [json.dumps(self.to_dict()).encode()]
        bare = replace(self, constants=tuple(replace(c, values=None) for c in self.constants))
        body = {k: v for k, v in bare.to_dict().items() if k != "checksum"}
        sums = [None if c.values is None else [len(c.values), hashlib.sha256(c.values).hexdigest()]
                for c in self.constants]  # fmt: skip
        body |= {"format_version": FORMAT_VERSION, "values": sums}
        text = json.dumps({**body, "checksum": _checksum(body)}).encode()
        parts = [_MAGIC, len(text).to_bytes(_LENGTH_BYTES, "little"), text]
        parts.append(_alignment_padding(sum(map(len, parts))))
        for c in self.constants:
            if c.values is not None:
                parts += [c.values, _alignment_padding(len(c.values))]
        return parts

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> KernelArtifact:
        """Read an artifact written by :meth:`save`.

        Raises
        ------
        ArtifactError
            If the file is missing, damaged, or in a newer format.
        """
        file, where = path_of(path, "path", error=ArtifactError), str(path)
        try:
            data = read_file(file)
            if data.startswith(_MAGIC):
                return cls._from_file_with_constants(memoryview(data), where)
            text = data.decode("utf-8")
        except (OSError, UnicodeDecodeError) as err:
            raise ArtifactError(f"{path}: cannot read the artifact ({err}). Check the path.") from err
        return cls.from_dict(_parse_json(text, where), where)

    @classmethod
    def _from_file_with_constants(cls, data: memoryview, where: str) -> KernelArtifact:
        start = len(_MAGIC) + _LENGTH_BYTES
        size = int.from_bytes(data[len(_MAGIC) : start], "little")
        body = _parse_json(bytes(data[start : start + size]).decode("utf-8"), where)
        artifact = cls.from_dict(body, where)
        try:
            found = list(_read_constants(data, start + size, body["values"]))
            constants = tuple(replace(c, values=v) for c, v in zip(artifact.constants, found, strict=True))
        except (*MALFORMED, ValueError) as err:
            raise ArtifactError(f"{where}: the constants are damaged ({err!r}). Compile and save it again.") from err
        return replace(artifact, constants=constants)


def _alignment_padding(size: int) -> bytes:
    return bytes(-size % _ALIGN_BYTES)


def _read_constants(data: memoryview, position: int, rows: Sequence[Any]) -> Iterator[bytes | None]:
    """Yield each constant stored from ``position`` on, verified by checksum, or ``None`` for one without values."""
    for row in rows:
        if row is None:
            yield None
            continue
        size, known = row
        position += -position % _ALIGN_BYTES
        found = bytes(data[position : position + size])
        if hashlib.sha256(found).hexdigest() != known:
            raise ValueError("checksum does not match")
        position += size
        yield found


def _parse_json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as err:
        raise ArtifactError(f"{where}: not valid JSON ({err.msg} at character {err.pos}). Save it again.") from err
    except (ValueError, RecursionError) as err:  # numbers of thousands of digits, lists within lists
        raise ArtifactError(f"{where}: not valid JSON ({err}). Save it again.") from err


def _launch_to_dict(x: Launch) -> dict[str, Any]:
    return {
        "source": x.source,
        "entry": x.entry,
        "arguments": list(x.arguments),
        "grid": list(x.grid),
        "block": list(x.block),
        "dynamic_shared_bytes": x.dynamic_shared_bytes,
    }


def _launch_from_dict(x: dict[str, Any]) -> Launch:
    grid, block = ((x[name][0], x[name][1], x[name][2]) for name in ("grid", "block"))
    return Launch(x["source"], x["entry"], tuple(x["arguments"]), grid, block, x["dynamic_shared_bytes"])


def _encode_base64(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _checksum(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
