"""Kernel templates for CPUs: their candidate programs, prices and emitted code."""

from roller.templates.cpu.boxes import read_once
from roller.templates.cpu.common.cores import BOTTLENECKS, Parts
from roller.templates.cpu.common.lanes import lane_count, lane_distance, room
from roller.templates.cpu.decide import decided
from roller.templates.cpu.explained import explained
from roller.templates.cpu.registry import TEMPLATES, lower_bound_s, pool, price, price_programs, programs_of
from roller.templates.cpu.streaming.price import leaves_caches

__all__ = [
    "BOTTLENECKS",
    "TEMPLATES",
    "Parts",
    "decided",
    "explained",
    "lane_count",
    "lane_distance",
    "leaves_caches",
    "lower_bound_s",
    "pool",
    "price",
    "price_programs",
    "programs_of",
    "read_once",
    "room",
]
