"""What a pack holds: its parts, the rows of the benchmark, their sets, what was changed; standard library only."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from roller.errors import ArtifactError

FILE = "pack.json"
FORMAT, VERSION = "roller-gpu-pack", 1
#: Folders of the parts.
VARIANTS, PROBES, OPERATORS, MODELS = "variants", "probes", "operators", "models"


@dataclass(frozen=True)
class Planned:
    """One operator of the benchmark.

    Parameters
    ----------
    row
        As in ``operators.yaml``, with a reduced batch where ``notes`` says so.
    sets
        Classes it is reported in.
    notes
        What differs from the published row, and why.
    compiled
        Whether it belongs to the subset that ``torch.compile`` is tuned for.
    left_out
        Why the bundle holds no kernel of it; empty where it does.
    """

    row: Mapping[str, Any]
    sets: tuple[str, ...]
    notes: tuple[str, ...] = ()
    compiled: bool = False
    left_out: str = ""

    @property
    def id(self) -> str:
        """Its name in the tables."""
        return str(self.row["id"])


@dataclass(frozen=True)
class Pack:
    """A pack that was opened.

    Parameters
    ----------
    folder
        Where it is.
    device, language
        The specification its kernels are for.
    parts
        Folders of bundles that it holds, with their checksums.
    operators
        Rows of the benchmark.
    notes
        What was refused or left out where it was made, for the report.
    checksum
        Of all of this.
    """

    folder: Path
    device: str
    language: str
    parts: Mapping[str, str]
    operators: tuple[Planned, ...] = ()
    notes: tuple[str, ...] = ()
    checksum: str = field(default="", compare=False)

    @property
    def models(self) -> list[str]:
        """Names of the models."""
        return [Path(p).name for p in self.parts if p.startswith(f"{MODELS}/")]


def write_pack(pack: Pack) -> Pack:
    """Write what a pack holds into its folder; return it with its checksum."""
    body = {"format": FORMAT, "version": VERSION, "device": pack.device, "language": pack.language,
            "parts": dict(pack.parts), "operators": [asdict(p) for p in pack.operators],
            "notes": list(pack.notes)}  # fmt: skip
    text = json.dumps({**body, "checksum": _checksum(body)}, indent=1)
    (pack.folder / FILE).write_text(text + "\n", encoding="utf-8")
    return read_pack(pack.folder)


def read_pack(folder: Path) -> Pack:
    """Return the pack in a folder.

    Raises
    ------
    ArtifactError
        Where it is missing, damaged, or a part of it is another one than it lists.
    """
    path = folder / FILE
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if (data["format"], data["version"]) != (FORMAT, VERSION):
            raise ValueError(f"expected {FORMAT} {VERSION}")
        if data["checksum"] != _checksum(data):
            raise ValueError("its checksum does not match")
        operators = tuple(
            Planned(r["row"], tuple(r["sets"]), tuple(r["notes"]), bool(r["compiled"]), r["left_out"])
            for r in data["operators"]
        )
        for part, checksum in data["parts"].items():
            if json.loads((folder / part / "manifest.json").read_text(encoding="utf-8"))["checksum"] != checksum:
                raise ValueError(f"the part '{part}' belongs to another pack")
        return Pack(folder, data["device"], data["language"], data["parts"], operators, tuple(data["notes"]),
                    data["checksum"])  # fmt: skip
    except (OSError, KeyError, TypeError, ValueError) as err:
        raise ArtifactError(f"{path}: expected a pack ({err}). Make it with `python -m benchmarks.gpu pack`.") from err


def _checksum(body: Mapping[str, Any]) -> str:
    rest = {k: v for k, v in body.items() if k != "checksum"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def chosen(ids: Sequence[str], pattern: str) -> list[str]:
    """Return the ids that one of several patterns matches."""
    from fnmatch import fnmatchcase

    patterns = [p.strip() for p in pattern.split(",")]
    return [i for i in ids if any(fnmatchcase(i, p) for p in patterns)]
