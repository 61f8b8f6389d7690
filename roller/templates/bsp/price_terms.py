"""The price of one bulk-synchronous program as a tree of terms."""

from __future__ import annotations

from collections.abc import Sequence

from roller.perf.term_tree import Term, TermBuilder
from roller.templates.bsp.common.price import Parts


def explained(details: Sequence[Parts]) -> Term:
    """Return the predicted time of the single program in ``details``, in seconds, as a tree of terms."""
    p, at = details[0], TermBuilder()
    terms, d, spec = p["terms"], p["decided"], p["spec"]
    parts = (_compute_term(p, at), _exchange_term(p, at),
             at.made("product", "synchronisation", terms["sync_s"], "s",
                     at.given("meetings of all units", p["meetings"]),
                     at.given("one of them", spec.execution.barrier_s, "s")),
             at.made("quotient", "streaming", terms["streaming_s"], "s",
                     at.given("bytes beyond the scratchpads", d.streamed_bytes, "bytes", "streaming"),
                     at.given("bandwidth", spec.memory_layers[-1].bandwidth_bytes_per_s, "bytes/s", "streaming"),
                     layer="streaming"),
             at.given("launch", terms["launch_s"], "s"))  # fmt: skip
    return at.made("sum", "predicted time", terms["seconds"], "s", *parts)


def _compute_term(p: Parts, at: TermBuilder) -> Term:
    """Return the term for the time of all compute phases on the busiest unit."""
    d = p["decided"]
    steps = at.made("product", "reduction of a tile", d.steps * p["step"], "cycles", at.given("steps", d.steps),
                    at.given("cycles of a step", p["step"], "cycles"))  # fmt: skip
    tile = at.made("sum", "cycles of a tile", d.steps * p["step"] + p["once"], "cycles", steps,
                   at.given("other stages, parts", p["once"], "cycles"))  # fmt: skip
    cycles = at.made("product", "cycles of a unit", p["cycles"], "cycles", at.given("waves", d.waves), tile)
    return at.made("quotient", "computing", p["terms"]["compute_s"], "s", cycles,
                   at.given("clock", p["spec"].clock_hz, "Hz"))  # fmt: skip


def _exchange_term(p: Parts, at: TermBuilder) -> Term:
    """Return the term for the time in which a unit receives its data tiles and sends its results."""
    d, home = p["decided"], p["spec"].traits.home
    tiles = at.made("product", "data tiles", d.steps * d.received_bytes, "bytes", at.given("steps", d.steps),
                    at.given("data tiles of a step", d.received_bytes, "bytes", home))  # fmt: skip
    total = d.steps * d.received_bytes + d.other_bytes + d.partial_bytes + d.result_bytes
    each = at.made("sum", "bytes of a tile", total, "bytes",
                   tiles, at.given("operands of other stages", d.other_bytes, "bytes", home),
                   at.given("parts of the reduction", d.partial_bytes, "bytes", home),
                   at.given("results", d.result_bytes, "bytes", home))  # fmt: skip
    moved = at.made("product", "bytes of a unit", p["moved"], "bytes", at.given("waves", d.waves), each)
    bandwidth = at.made("quotient", "a unit's share of the exchange", p["share"], "bytes/s",
                        at.given("exchange", p["spec"].layer(home).bandwidth_bytes_per_s, "bytes/s", home),
                        at.given("units", p["spec"].units))  # fmt: skip
    return at.made("quotient", "exchange", p["terms"]["exchange_s"], "s", moved, bandwidth, layer=home)
