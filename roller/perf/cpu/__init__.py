"""The CPU half of the micro performance model."""

from roller.perf.cpu.lanes import lane_count, lane_distance
from roller.perf.cpu.price import price
from roller.perf.cpu.traffic import leaves_caches

__all__ = ["lane_count", "lane_distance", "leaves_caches", "price"]
