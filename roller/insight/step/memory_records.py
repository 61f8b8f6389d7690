"""Records of allocations and frees in a profile, stored in a few bytes each while the profile is read."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from typing import Any

#: Name of the records that PyTorch writes with ``profile_memory=True``.
MEMORY = "[memory]"
#: Placeholder for a number that the profile does not give.
UNSAID = -1
_MOST = 1 << 62
_MOST_DEVICES = 1 << 10


def thread_lane_name(row: Mapping[str, Any]) -> str:
    """Return the lane name for an event on a thread."""
    return f"process {row['pid']}, thread {row['tid']}"


class MemoryRecords:
    """The records of all devices in file order, 54 bytes each."""

    def __init__(self) -> None:
        # Sizes are negative for frees. Addresses and totals are :data:`UNSAID` if an old version of PyTorch does not
        # give them. ``order`` numbers the profiler's events and thereby orders records of the same time. ``devices``
        # and ``lanes`` are values of ``device_names`` (type and number -> index) and ``lane_names`` (thread -> index).
        self.times_us = array("d")
        self.sizes_bytes, self.addresses, self.order = array("q"), array("q"), array("q")
        self.allocated_bytes, self.reserved_bytes = array("q"), array("q")
        self.devices, self.lanes = array("H"), array("I")
        self.device_names: dict[tuple[int, int], int] = {}
        self.lane_names: dict[str, int] = {}

    def __len__(self) -> int:
        """Return the number of records."""
        return len(self.times_us)

    def add(self, row: Mapping[str, Any]) -> str:
        """Add a record; return why it is skipped if it is damaged, otherwise ``""``."""
        try:
            said = row["args"]
            time_us, size = float(row["ts"]), _parse_whole_number(said["Bytes"])
            rest = [
                _parse_whole_number(said.get(name, UNSAID))
                for name in ("Addr", "Total Allocated", "Total Reserved", "Ev Idx")
            ]
            device = _parse_whole_number(said.get("Device Type", 0)), _parse_whole_number(said.get("Device Id", 0))
            lane = thread_lane_name(row)
            if not math.isfinite(time_us):
                raise ValueError(f"ts {time_us}")
            if len(self.device_names) >= _MOST_DEVICES and device not in self.device_names:
                raise ValueError("more devices than a machine has")
            place = self.device_names.setdefault(device, len(self.device_names))
        except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
            return f"a record of memory without a usable time, size and thread ({error!r})"
        self.times_us.append(time_us)
        self.sizes_bytes.append(size)
        columns = self.addresses, self.allocated_bytes, self.reserved_bytes, self.order
        for kept, value in zip(columns, rest, strict=True):
            kept.append(value)
        self.devices.append(place)
        self.lanes.append(self.lane_names.setdefault(lane, len(self.lane_names)))
        return ""


def _parse_whole_number(value: Any) -> int:
    """Return an integer from a record; raise ``ValueError`` if it is out of range."""
    number = int(value)
    if not -_MOST < number < _MOST:
        raise ValueError(f"{number}")
    return number
