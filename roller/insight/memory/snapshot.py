"""Memory snapshots in PyTorch's format, written from the simulator and read from real runs."""

# The format is that of ``torch.cuda.memory._snapshot``, pickled, which https://pytorch.org/memory_viz and
# ``torch.cuda._memory_viz`` draw. Reading a snapshot does not run any code in it.

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from roller.errors import MALFORMED, ArtifactError
from roller.insight.memory.allocator_blocks_and_pools import Block
from roller.insight.memory.caching_allocator import CachingAllocator
from roller.insight.memory.pickle_limits import check_pickle_sizes
from roller.insight.memory.recorded_memory_events import MemoryEvent
from roller.insight.memory.settings import AllocatorSettings
from roller.insight.memory.simulate import Library, events_with_workspaces
from roller.insight.trace.trace import FreeEvent, Trace
from roller_runtime.core.files import read_file, write_atomically


def make_snapshot(
    trace: Trace, *, settings: AllocatorSettings | None = None, library: Library | None = None
) -> dict[str, Any]:
    """Return a snapshot of the memory at the end of a traced run, with all events of the run."""
    # The first frame of an event is the operator's line in the user's project, with the name of its module. Times are
    # indices of operators.
    allocator, entries = CachingAllocator(settings=settings), []
    row: dict[str, Any]
    for event in events_with_workspaces(trace, library or Library()):
        time_us, frames = max(event.operator, 0), _operator_stack_frames(trace, event.operator)
        if isinstance(event, FreeEvent):
            block = allocator.live.get(event.storage)
            if block is not None:
                row = {"addr": block.address, "size": block.requested, "stream": block.stream, "time_us": time_us}
                entries += [{"action": a, "frames": frames, **row} for a in ("free_requested", "free_completed")]
            allocator.free(event.storage)
            continue
        before = allocator.reserved_bytes
        address = allocator.malloc(event.storage, event.size_bytes, event.stream)
        row = {"addr": address, "stream": event.stream, "time_us": time_us, "frames": frames}
        if allocator.reserved_bytes > before:
            entries.append({"action": "segment_alloc", "size": allocator.reserved_bytes - before, **row})
        entries.append({"action": "alloc", "size": event.size_bytes, **row})
    return {
        "segments": [_segment_as_snapshot_dict(blocks) for blocks in allocator.segments()],
        "device_traces": [entries],
        "allocator_settings": {"expandable_segments": allocator.settings.expandable_segments},
    }


def write_snapshot(path: Path | str, made: Mapping[str, Any]) -> None:
    """Write a snapshot for PyTorch's viewers; the file is replaced atomically."""
    with write_atomically(Path(path)) as file:
        pickle.dump(dict(made), file)


def read_snapshot(path: Path | str) -> dict[str, Any]:
    """Return the snapshot in a file that was written by PyTorch or :func:`write_snapshot`."""
    try:
        data = read_file(path)
        check_pickle_sizes(data)
        read = _PlainUnpickler(io.BytesIO(data)).load()
        if not isinstance(read, dict) or not {"segments", "device_traces"} <= set(read):
            raise ValueError("no segments and device_traces")
    except Exception as error:
        raise ArtifactError(
            f"{path}: expected a memory snapshot of PyTorch, got what cannot be read ({error}). Write it with "
            "torch.cuda.memory._dump_snapshot."
        ) from error
    return read


def memory_events_of_snapshot(read: Mapping[str, Any], device: int = 0) -> list[MemoryEvent]:
    """Return the allocations and frees in a snapshot, in order."""
    try:
        return _memory_events_of_device(read, device)
    except (*MALFORMED, ValueError) as error:
        raise ArtifactError(
            f"memory snapshot: expected the events of device {device}, got what has none ({error!r}). Write it with "
            "torch.cuda.memory._dump_snapshot."
        ) from error


def _memory_events_of_device(read: Mapping[str, Any], device: int) -> list[MemoryEvent]:
    reserved, found = 0, []
    for entry in read["device_traces"][device]:
        sign = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}.get(entry["action"])
        if sign is not None:
            reserved += sign * entry["size"]
        elif entry["action"] in ("alloc", "free_completed"):
            size = AllocatorSettings().round_up_bytes(entry["size"])
            found.append(MemoryEvent(entry["addr"], size if entry["action"] == "alloc" else -size, reserved, device))
    return found


class _PlainUnpickler(pickle.Unpickler):
    """Unpickler for dicts, lists, numbers and strings that refuses classes and functions."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"it names {module}.{name}")


def _operator_stack_frames(trace: Trace, operator: int) -> list[dict[str, Any]]:
    if not 0 <= operator < len(trace.operators):
        return []
    made = trace.operators[operator]
    frames = [{"filename": f.file, "line": f.line, "name": f.function} for f in reversed(made.stack)]
    return [frames[0] | {"name": made.module or made.name}, *frames[1:]] if frames else []


def _segment_as_snapshot_dict(blocks: Sequence[Block]) -> dict[str, Any]:
    first, allocated = blocks[0], [b for b in blocks if b.allocated]
    return {
        "device": 0,
        "address": first.segment,
        "total_size": sum(b.size for b in blocks),
        "allocated_size": sum(b.size for b in allocated),
        "active_size": sum(b.size for b in allocated),
        "requested_size": sum(b.requested for b in allocated),
        "stream": first.stream,
        "segment_type": "small" if first.pool.is_small else "large",
        "segment_pool_id": (0, 0),
        "is_expandable": first.expandable,
        "frames": [],
        "blocks": [
            {
                "address": b.address,
                "size": b.size,
                "requested_size": b.requested if b.allocated else b.size,
                "state": "active_allocated" if b.allocated else "inactive",
                "frames": [],
            }
            for b in blocks
        ],
    }
