"""The cards a pack is for: which one is there, and its view of kernels that several cards share; standard library.

Cards of one architecture run the same binaries; what differs is which kernel the model prefers and how long it takes.
So a bundle holds every kernel once, and beside it lies one file per card: its candidates in its order, with estimates.
"""

from __future__ import annotations

import json
import lzma
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from roller.artifact import KernelArtifact
from roller.backends.parse_device_names import DeviceProperties, architectures_match
from roller.errors import ArtifactError, LaunchError
from roller.runtime.bundle_format import Bundle, OperatorEntry

#: Candidates of a card by operator: its own id, the id in the bundle, the estimate.
Order = Mapping[str, Sequence[tuple[str, str, Mapping[str, Any]]]]


@dataclass(frozen=True)
class Card:
    """What tells one card from another.

    Parameters
    ----------
    name
        Of its specification.
    arch, units, memory_bytes
        As in the specification.
    """

    name: str
    arch: str
    units: int
    memory_bytes: int


def card_there(properties: DeviceProperties, cards: Sequence[Card]) -> Card:
    """Return the card whose specification is nearest to what a device says of itself.

    Raises
    ------
    LaunchError
        Where none has its architecture.

    Examples
    --------
    >>> small, large = Card("h100", "sm_90a", 132, 80 * 10**9), Card("h200", "sm_90a", 132, 141 * 10**9)
    >>> card_there(DeviceProperties("a card", "sm_90", 132, 150 * 10**9), (small, large)).name
    'h200'
    """
    fitting = [c for c in cards if architectures_match(c.arch, properties.arch)]
    if not fitting:
        known = ", ".join(f"{c.name} ({c.arch})" for c in cards)
        raise LaunchError(
            f"{properties.name} ({properties.arch}): expected one of {known}. Make a pack with --device of its spec."
        )

    def distance(card: Card) -> tuple[float, str]:
        units = abs(math.log(max(properties.units, 1) / card.units))
        return units + abs(math.log(max(properties.memory_bytes, 1) / card.memory_bytes)), card.name

    return min(fitting, key=distance)


def order_file(folder: Path, card: str) -> Path:
    """Return where a bundle's candidates of one card are listed."""
    return folder / "cards" / f"{card}.xz"


def write_order(folder: Path, card: str, bundle: str, spec: Mapping[str, Any], order: Order) -> None:
    """List the candidates of one card beside a bundle.

    Parameters
    ----------
    folder
        The bundle.
    card
        Its name.
    bundle
        Checksum of the bundle.
    spec, order
        Its specification as plain data; its candidates.
    """
    path = order_file(folder, card)
    path.parent.mkdir(exist_ok=True)
    text = json.dumps({"bundle": bundle, "spec": spec, "operators": order}, separators=(",", ":"))
    path.write_bytes(lzma.compress(text.encode(), preset=6))


class CardBundle(Bundle):
    """A bundle as one card sees it: its own candidates, in its order, with its predictions.

    Parameters
    ----------
    folder
        The bundle.
    card
        Name of the card.

    Raises
    ------
    ArtifactError
        Where either file is missing, damaged, or belongs to another one.
    """

    def __init__(self, folder: Path, card: str) -> None:
        super().__init__(folder)
        path = order_file(folder, card)
        try:
            data = json.loads(lzma.decompress(path.read_bytes()))
            if data["bundle"] != self.checksum:
                raise ValueError("it belongs to another bundle")
            self._order: Order = data["operators"]
            self.manifest = {**self.manifest, "device": card, "spec": data["spec"]}
            self._of_all_cards = {e.id: e for e in self.operators}
            self.operators = tuple(self._seen(e) for e in self.operators if self._order.get(e.id))
        except (OSError, lzma.LZMAError, KeyError, TypeError, ValueError) as err:
            raise ArtifactError(f"{path}: expected the candidates of {card} ({err}). Copy the pack again.") from err
        self.device = card

    def _seen(self, entry: OperatorEntry) -> OperatorEntry:
        mine = self._order[entry.id]
        known = dict(zip(entry.candidates, entry.proved, strict=False))
        proved = tuple(known[shared] for _, shared, _ in mine) if known else ()
        return replace(entry, candidates=tuple(own for own, _, _ in mine), proved=proved,
                       predicted_s=tuple(float(e["seconds"]) for _, _, e in mine))  # fmt: skip

    def load(self, entry: OperatorEntry) -> list[tuple[str, KernelArtifact]]:
        """Return the candidates of an operator, the card's best estimate first."""
        held = dict(super().load(self._of_all_cards[entry.id]))
        return [(own, replace(held[shared], device=self.device, estimate=dict(estimate)))
                for own, shared, estimate in self._order[entry.id]]  # fmt: skip
