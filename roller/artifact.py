"""KernelArtifact: everything needed to build, launch and explain one kernel, without TVM.

An artifact is one JSON document: launches (source, entry, grid, block), arguments with their roles,
the target, the program and the estimate it was chosen for, the user's own expression (the oracle
travels with the kernel) and, where it was built, the binary. Readable by any later version; a newer
format is refused with a clear error.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import zlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from roller.errors import MALFORMED, ArtifactError, shown
from roller.expr import TensorExpr
from roller.expr.serialize import expr_from_dict, expr_to_dict
from roller.files import whole_file
from roller.tile import RProgram
from roller.validation import path as path_of

FORMAT_VERSION = 2
#: Files that need no field of a later format are written in this one, for earlier readers.
_FIRST_FORMAT = 1
#: A panel holds what ``prepare`` packs of the constants, once; a workspace belongs to a call.
ROLES = ("input", "output", "workspace", "panel")

#: Where ``build`` says why the measured time is doubtful; absent where it was measured undisturbed.
DOUBT = "doubt"
#: Where ``build`` says why the candidates, whose times are right, could not be ranked; absent where they were.
TIED = "tied"


@dataclass(frozen=True)
class Argument:
    """A kernel argument: name, role, shape in elements, dtype.

    ``shape`` is the shape the *kernel* sees (axes may be fused); it holds as many elements, in the same
    order, as the tensor of the user's expression, so arrays are viewed, never copied.
    """

    name: str
    role: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Launch:
    """One kernel launch: entry of ``source``, grid and block (x, y, z), argument names in kernel order."""

    source: str
    entry: str
    arguments: tuple[str, ...]
    grid: tuple[int, int, int] = (1, 1, 1)
    block: tuple[int, int, int] = (1, 1, 1)
    dynamic_shared_bytes: int = 0


@dataclass(frozen=True)
class Constant:
    """An input whose values do not change from call to call, so that no caller passes it.

    Parameters
    ----------
    position
        Which input of the expression it is, in call order.
    values
        Its elements in row-major order as the kernel takes them (bfloat16 as bits); ``None`` where the caller holds
        them, as in the kernel cache: one kernel serves all values.
    """

    position: int
    values: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True)
class KernelArtifact:
    """One lowered kernel and its provenance.

    Parameters
    ----------
    language
        ``"cuda"``, ``"hip"`` or ``"llvm"`` (a CPU library): decides which backend builds and launches it.
    target
        What the backend needs to build it: ``{"arch": "sm_70"}``, ``{"mcpu": "...", "cores": 2}``.
    device
        Name of the DeviceSpec the program was constructed for.
    expression
        The user's expression: argument shapes and the float64 reference.
    program
        The rProgram.
    launches, arguments
        See :class:`Launch`, :class:`Argument`; inputs (the constant ones too) are in call order, then outputs, then
        workspace and panels.
    estimate
        The prediction as plain data (seconds, bottleneck, terms); labelled predicted wherever shown.
    binary
        Built image (CPU shared library, cubin or AMD code object), or ``None``.
    build
        What the compiler reported: registers, spill bytes, static scratchpad bytes, seconds.
    measured_s
        Median measured seconds per call where it was timed.
    constants
        Inputs that are constant; see :class:`Constant`.
    prepare
        What packs constants into panels, once, when the kernel is loaded; ``None`` where nothing is to pack.
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

    @property
    def doubt(self) -> str:
        """Why the measured time may be wrong, and the choice with it; empty where nothing disturbed it."""
        return str(self.build.get(DOUBT, ""))

    @property
    def tied(self) -> str:
        """Why the candidates could not be ranked by their times, which are right; empty where they were."""
        return str(self.build.get(TIED, ""))

    @property
    def inputs(self) -> tuple[Argument, ...]:
        """Arguments of the expression's inputs in call order, constant ones included."""
        return tuple(a for a in self.arguments if a.role == "input")

    @property
    def outputs(self) -> tuple[Argument, ...]:
        """Arguments the kernel writes for the caller."""
        return tuple(a for a in self.arguments if a.role == "output")

    @property
    def source(self) -> str:
        """Sources of all launches, in order."""
        return "\n".join(dict.fromkeys(launch.source for launch in self.launches))

    def with_binary(self, binary: bytes, **build: Any) -> KernelArtifact:
        """Return a copy that carries the built image and what the build reported."""
        return replace(self, binary=binary, build={**self.build, **build})

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data with a checksum over the rest."""
        body = {
            "format_version": FORMAT_VERSION if self.constants else _FIRST_FORMAT,
            "language": self.language,
            "target": self.target,
            "device": self.device,
            "expression": expr_to_dict(self.expression),
            "program": self.program.to_dict(),
            "launches": [_launch_to_dict(x) for x in self.launches],
            "arguments": [[a.name, a.role, list(a.shape), a.dtype] for a in self.arguments],
            "estimate": self.estimate,
            "binary": _base64(None if self.binary is None else zlib.compress(self.binary)),
            "build": self.build,
            "measured_s": self.measured_s,
        }
        if self.constants:
            body["constants"] = [[c.position, _base64(c.values)] for c in self.constants]
            body["prepare"] = _launch_to_dict(self.prepare) if self.prepare is not None else None
        return {**body, "checksum": _checksum(body)}

    @classmethod
    def from_dict(cls, data: dict[str, Any], where: str = "artifact") -> KernelArtifact:
        """Rebuild an artifact; ``where`` names the file in errors.

        Raises
        ------
        ArtifactError
            Where the data are of a newer format, damaged, or incomplete.
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
                tuple(_launch_of(x) for x in body["launches"]),
                tuple(Argument(n, r, tuple(s), d) for n, r, s, d in body["arguments"]),
                body["estimate"],
                zlib.decompress(base64.b64decode(body["binary"])) if body["binary"] is not None else None,
                body["build"],
                body["measured_s"],
                tuple(Constant(n, None if v is None else base64.b64decode(v)) for n, v in body.get("constants", ())),
                _launch_of(body["prepare"]) if body.get("prepare") is not None else None,
            )
        except ArtifactError:
            raise
        except (*MALFORMED, ValueError, zlib.error) as err:
            text = f"{where}: a field is missing or malformed ({err!r}). Compile and save it again."
            raise ArtifactError(text) from err

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the artifact as JSON; the file appears whole or not at all.

        Raises
        ------
        ArtifactError
            Where the path cannot be written.
        """
        target = path_of(path, "path", error=ArtifactError)
        text = json.dumps(self.to_dict())  # before anything is written
        try:
            with whole_file(target) as file:
                file.write(text.encode())
        except OSError as err:
            raise ArtifactError(f"{target}: cannot write ({err.strerror}). Choose a writable path.") from err
        return target

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> KernelArtifact:
        """Read an artifact written by :meth:`save`.

        Raises
        ------
        ArtifactError
            Where the file is missing, damaged or of a newer format.
        """
        path = path_of(path, "path", error=ArtifactError)
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as err:
            raise ArtifactError(f"{path}: cannot read the artifact ({err}). Check the path.") from err
        try:
            data = json.loads(text)
        except json.JSONDecodeError as err:
            raise ArtifactError(f"{path}: not valid JSON ({err.msg} at character {err.pos}). Save it again.") from err
        except (ValueError, RecursionError) as err:  # numbers of thousands of digits, lists within lists
            raise ArtifactError(f"{path}: not valid JSON ({err}). Save it again.") from err
        return cls.from_dict(data, str(path))


def _launch_to_dict(x: Launch) -> dict[str, Any]:
    return {
        "source": x.source,
        "entry": x.entry,
        "arguments": list(x.arguments),
        "grid": list(x.grid),
        "block": list(x.block),
        "dynamic_shared_bytes": x.dynamic_shared_bytes,
    }


def _launch_of(x: dict[str, Any]) -> Launch:
    grid, block = ((x[name][0], x[name][1], x[name][2]) for name in ("grid", "block"))
    return Launch(x["source"], x["entry"], tuple(x["arguments"]), grid, block, x["dynamic_shared_bytes"])


def _base64(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _checksum(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
