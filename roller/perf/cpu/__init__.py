"""The CPU half of the micro performance model."""

from roller.perf.cpu.explained import explained
from roller.perf.cpu.lanes import chunk_count, lane_count, lane_distance, room, task_count
from roller.perf.cpu.price import Parts, price
from roller.perf.cpu.streams import leaves_caches

__all__ = [
    "Parts",
    "chunk_count",
    "explained",
    "lane_count",
    "lane_distance",
    "leaves_caches",
    "price",
    "room",
    "task_count",
]
