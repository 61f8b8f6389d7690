"""Kernel templates for CPUs: their candidate programs, prices and emitted code."""

from roller.templates.cpu.common.lanes_and_cache_room import lane_count, lane_distance, usable_cache_bytes
from roller.templates.cpu.common.task_scheduling_costs import BOTTLENECKS, Parts
from roller.templates.cpu.decisions import decisions_for_device
from roller.templates.cpu.price_terms import explained
from roller.templates.cpu.registry import TEMPLATES, lower_bound_s, pool, price, price_programs, programs_of
from roller.templates.cpu.staging_and_contiguity_checks import is_read_once
from roller.templates.cpu.streaming.price import results_leave_caches

__all__ = [
    "BOTTLENECKS",
    "TEMPLATES",
    "Parts",
    "decisions_for_device",
    "explained",
    "lane_count",
    "lane_distance",
    "results_leave_caches",
    "lower_bound_s",
    "pool",
    "price",
    "price_programs",
    "programs_of",
    "is_read_once",
    "usable_cache_bytes",
]
