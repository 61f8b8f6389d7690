"""What a pack holds: its parts, the rows of the benchmark, their sets, what was changed; standard library only."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from benchmarks.gpu.cards import Card, CardBundle
from benchmarks.gpu.schedule import Row, table_of
from roller.errors import ArtifactError

FILE = "pack.json"
FORMAT, VERSION = "roller-gpu-pack", 2
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
class Schedule:
    """What a run spends its time on.

    Parameters
    ----------
    phases
        The table of phases, in their order.
    headline
        Ids of the operators that come first.
    pretended_s
        Of a rehearsal: seconds to begin a phase, and of one unit, by the kind of the unit.
    """

    phases: tuple[Row, ...] = ()
    headline: tuple[str, ...] = ()
    pretended_s: Mapping[str, tuple[float, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Pack:
    """A pack that was opened, for one of its cards.

    Parameters
    ----------
    folder
        Where it is.
    cards, device
        The cards its kernels are for, and the name of the one that is meant.
    language
        Of the kernels.
    parts
        Folders of bundles that it holds, with their checksums.
    operators
        Rows of the benchmark.
    notes
        What was refused or left out where it was made, for the report.
    schedule
        What a run spends its time on.
    checksum
        Of all of this but ``device``.
    """

    folder: Path
    cards: tuple[Card, ...]
    device: str
    language: str
    parts: Mapping[str, str]
    operators: tuple[Planned, ...] = ()
    notes: tuple[str, ...] = ()
    schedule: Schedule = Schedule()
    checksum: str = field(default="", compare=False)

    @property
    def models(self) -> list[str]:
        """Names of the models."""
        return [Path(p).name for p in self.parts if p.startswith(f"{MODELS}/")]

    def part(self, name: str) -> Path | None:
        """Return the folder of a part, where the pack has it; probes have one per card."""
        place = f"{name}/{self.device}" if name == PROBES else name
        return self.folder / place if place in self.parts else None

    def kernels(self, part: str) -> CardBundle:
        """Open the kernels of a part as the card sees them."""
        return _opened(self.folder / part, self.device, self.parts[part])


@lru_cache(maxsize=8)
def _opened(folder: Path, card: str, checksum: str) -> CardBundle:
    """Open a bundle once: hundreds of its files are looked at."""
    del checksum  # so that another bundle in the same place is opened
    return CardBundle(folder, card)


def write_pack(pack: Pack) -> Pack:
    """Write what a pack holds into its folder; return it with its checksum."""
    body = {"format": FORMAT, "version": VERSION, "cards": [asdict(c) for c in pack.cards], "language": pack.language,
            "parts": dict(pack.parts), "operators": [asdict(p) for p in pack.operators],
            "notes": list(pack.notes), "schedule": asdict(pack.schedule)}  # fmt: skip
    text = json.dumps({**body, "checksum": _checksum(json.loads(json.dumps(body)))}, indent=1)
    (pack.folder / FILE).write_text(text + "\n", encoding="utf-8")
    return read_pack(pack.folder, pack.device)


def read_pack(folder: Path, card: str = "") -> Pack:
    """Return the pack in a folder, for a card of it, the first unless one is named.

    Raises
    ------
    ArtifactError
        Where it is missing, damaged, a part of it is another one than it lists, or it is not for the card.
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
        cards = tuple(Card(**c) for c in data["cards"])
        told = data["schedule"]
        schedule = Schedule(table_of(told["phases"]), tuple(told["headline"]),
                            {k: (start, each) for k, (start, each) in told["pretended_s"].items()})  # fmt: skip
        first = cards[0].name
    except (OSError, KeyError, IndexError, TypeError, ValueError) as err:
        raise ArtifactError(f"{path}: expected a pack ({err}). Make it with `python -m benchmarks.gpu pack`.") from err
    if card and card not in {c.name for c in cards}:
        known = ", ".join(c.name for c in cards)
        raise ArtifactError(f"{path}: expected one of the cards {known}, got '{card}'. Make a pack for it.")
    return Pack(folder, cards, card or first, data["language"], data["parts"], operators, tuple(data["notes"]),
                schedule, data["checksum"])  # fmt: skip


def _checksum(body: Mapping[str, Any]) -> str:
    rest = {k: v for k, v in body.items() if k != "checksum"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def chosen(ids: Sequence[str], pattern: str) -> list[str]:
    """Return the ids that one of several patterns matches."""
    from fnmatch import fnmatchcase

    patterns = [p.strip() for p in pattern.split(",")]
    return [i for i in ids if any(fnmatchcase(i, p) for p in patterns)]
