"""The price of one CPU program as a tree of terms: micro-kernels, caches, packing, and tasks.

The values come from the templates' prices; this module adds the rules that relate them, in the order of computation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from roller.perf.term_tree import Term, TermBuilder
from roller.templates.cpu.common.task_scheduling_costs import Parts

#: Memory layer of each traffic term, and the layer's common name.
_LAYERS = {"l2_s": ("l2", "L2"), "l3_s": ("l3", "L3"), "dram_s": ("dram", "DRAM")}


def explained(details: Sequence[Parts]) -> Term:
    """Return a program's predicted time, in seconds, as a term, from the parts that its price put into ``details``."""
    p = details[0]
    ways: dict[str, Callable[[Parts, TermBuilder], Term]] = {
        "tiled": _tiled_term, "matrix": _tiled_term, "dots": _dot_product_term, "rows": _streamed_term,
        "streaming": _streamed_term,
        "winograd": _winograd_term,
    }  # fmt: skip
    return ways[p["way"]](p, TermBuilder())


def _tiled_term(p: Parts, at: TermBuilder) -> Term:
    terms, spec = p["terms"], p["spec"]
    memory = at.made("largest", "caches and memory", p["memory"], "s", *(_traffic_term(p, at, n) for n in _LAYERS))
    work = at.made("sum", "arithmetic and its stores", terms["compute_s"] + terms["store_s"], "s",
                   _micro_kernels_term(p, at),
                   _partial_line_store_term(p, at))  # fmt: skip
    in_flight = at.given("misses in flight", spec.execution.misses_in_flight or 1)
    slowest = at.made("overlapped", "arithmetic and memory", p["slowest"], "s", memory, work, in_flight)
    return at.made("sum", "predicted time", terms["seconds"], "s", slowest, at.given("packing", terms["pack_s"], "s"),
                   _wait_for_lines_term(p, at), _combine_parts_term(p, at), _launch_term(p, at))  # fmt: skip


def _micro_kernels_term(p: Parts, at: TermBuilder) -> Term:
    """Return the term for the time that all micro-kernels take."""
    kernels = at.given("micro-kernels", p["kernels"])
    points = at.made("product", "reduction of a micro-kernel", p["points"] * p["cycles"], "cycles",
                     at.given("reduction points", p["points"]),
                     at.given("cycles of a point", p["cycles"], "cycles"))  # fmt: skip
    each = at.made("sum", "cycles of a micro-kernel", p["points"] * p["cycles"] + p["write"], "cycles", points,
                   at.given("its start and results", p["write"], "cycles"))  # fmt: skip
    cycles = at.made("product", "cycles of all", p["kernels"] * (p["points"] * p["cycles"] + p["write"]), "cycles",
                     kernels, each)  # fmt: skip
    return _cycles_as_seconds_term(p, at, "arithmetic", p["terms"]["compute_s"], cycles)


def _partial_line_store_term(p: Parts, at: TermBuilder) -> Term:
    """Return the term for the time of stores to lines that vectors do not fill."""
    cycles = at.made("product", "cycles of all", p["kernels"] * p["lines"], "cycles",
                     at.given("micro-kernels", p["kernels"]),
                     at.given("cycles of partly filled lines", p["lines"], "cycles"))  # fmt: skip
    return _cycles_as_seconds_term(p, at, "stores to partly filled lines", p["terms"]["store_s"], cycles)


def _cycles_as_seconds_term(p: Parts, at: TermBuilder, name: str, value: object, cycles: Term) -> Term:
    """Return the term for the seconds that the busiest core takes for its share of ``cycles``."""
    spec = p["spec"]
    rate = at.made("product", "cycles per second of all cores", spec.clock_hz * spec.units, "Hz",
                   at.given("clock", spec.clock_hz, "Hz"), at.given("cores", spec.units))  # fmt: skip
    even = Term("shared evenly", cycles.value / rate.value, "s", "quotient", (cycles, rate))
    return at.made("product", name, value, "s", even, at.given("busiest core against an even share", p["imbalance"]))


def _traffic_term(p: Parts, at: TermBuilder, term: str) -> Term:
    """Return the term for the time that a layer takes to move its bytes at its bandwidth."""
    layer, shown = _LAYERS[term]
    bandwidth = at.given("bandwidth", p["spec"].layer(layer).bandwidth_bytes_per_s, "bytes/s", layer)
    if term == "dram_s":
        moved = at.given("bytes", p["terms"]["dram_bytes"], "bytes", layer)
        return at.made("quotient", shown, p["terms"][term], "s", moved, bandwidth, layer=layer)
    moved = at.given("bytes", p["l2_bytes" if term == "l2_s" else "l3_bytes"], "bytes", layer)
    even = Term("shared evenly", moved.value / bandwidth.value, "s", "quotient", (moved, bandwidth))
    busiest = at.given("busiest core against an even share", p["imbalance"])
    return at.made("product", shown, p["terms"][term], "s", even, busiest, layer=layer)


def _wait_for_lines_term(p: Parts, at: TermBuilder) -> Term:
    """Return the term for the time spent waiting for lines that no prefetcher loads."""
    moved = at.given("bytes no prefetcher follows", p["stream_bytes"], "bytes", "l3")
    bandwidth = at.given("bandwidth", p["spec"].layer("l3").bandwidth_bytes_per_s, "bytes/s", "l3")
    even = Term("shared evenly", moved.value / bandwidth.value, "s", "quotient", (moved, bandwidth))
    busiest = at.given("busiest core against an even share", p["imbalance"])
    return at.made("product", "lines waited for", p["terms"]["stream_s"], "s", even, busiest, layer="l3")


def _combine_parts_term(p: Parts, at: TermBuilder) -> Term:
    return at.given("adding the parts of the reduction", p["terms"]["combine_s"], "s")


def _launch_term(p: Parts, at: TermBuilder) -> Term:
    return at.given("call, forks and joins", p["terms"]["launch_s"], "s")


def _leaf_term(p: Parts, at: TermBuilder, term: str) -> Term:
    layer, shown = _LAYERS[term]
    return at.given(shown, p["terms"][term], "s", layer)


def _dot_product_term(p: Parts, at: TermBuilder) -> Term:
    terms = p["terms"]
    layers = [_leaf_term(p, at, n) for n in _LAYERS]
    memory = at.made("largest", "caches and memory", max(t.value for t in layers), "s", *layers)
    compute = at.given("arithmetic", terms["compute_s"], "s")
    both = at.made("sum", "arithmetic and memory", memory.value + compute.value, "s", memory, compute)
    return at.made(
        "sum", "predicted time", terms["seconds"], "s", both, _combine_parts_term(p, at), _launch_term(p, at)
    )


def _streamed_term(p: Parts, at: TermBuilder) -> Term:
    terms = p["terms"]
    cycles = at.given("cycles of all elements", p["cycles"], "cycles")
    compute = _cycles_as_seconds_term(p, at, "arithmetic", terms["compute_s"], cycles)
    memory = at.made("sum", "caches and memory", p["memory"], "s", *(_leaf_term(p, at, n) for n in _LAYERS))
    slowest = at.made("largest", "arithmetic or memory", p["slowest"], "s", compute, memory)
    every = at.made("product", "between tasks, all", terms["tasks"] * p["each"], "s", at.given("tasks", terms["tasks"]),
                    at.given("between two tasks", p["each"], "s"))  # fmt: skip
    per_task = at.made("quotient", "between tasks", p["per_task"], "s", every, at.given("cores", p["spec"].units))
    return at.made("sum", "predicted time", terms["seconds"], "s", slowest, per_task, _launch_term(p, at))


def _winograd_term(p: Parts, at: TermBuilder) -> Term:
    terms = p["terms"]
    layers = [_leaf_term(p, at, n) for n in _LAYERS]
    memory = at.made("largest", "caches and memory", max(t.value for t in layers), "s", *layers)
    compute = at.given("products and transforms", terms["compute_s"], "s")
    in_flight = at.given("misses in flight", p["spec"].execution.misses_in_flight or 1)
    packing = at.given("transforming the filters", terms["pack_s"], "s")
    slowest = at.made("overlapped", "arithmetic and memory", p["slowest"], "s", memory, compute, in_flight)
    return at.made("sum", "predicted time", terms["seconds"], "s", slowest, packing, _launch_term(p, at))
