"""The price of one GPU program as a tree of terms: waves of blocks, with their phases, bytes, cycles and latencies.

All numbers come from :func:`roller.templates.gpu.common.price.price`; this module only states the rules that connect
them, in the order of that computation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from roller.hardware import DeviceSpec
from roller.perf.term_tree import Term, TermBuilder
from roller.templates.gpu.common.arithmetic_cycles import BlockWork
from roller.templates.gpu.common.power_limit import (
    busy_cycles,
    byte_energies_j,
    cycle_energies_j,
    non_busy_cycles,
    power_left_for_cycles_w,
)
from roller.templates.gpu.common.price import Parts

#: Names of the two kinds of waves, and the name of a single wave.
_WAVES, _ONLY = ("full waves", "last wave"), "the only wave"


def explained(details: Sequence[Parts]) -> Term:
    """Return the predicted time of the single program in ``details``, in seconds, as a tree of terms."""
    kernel = _kernel_term(details[0])
    if len(details) == 1:
        return kernel
    r, more = TermBuilder(), details[1]
    ways = [_transform_term(name, p) for name, p in zip(("transforms of inputs", "transform of results"),
                                                        more["transforms"],
                                                   strict=True)]  # fmt: skip
    transforms = sum(p["seconds"] for p in more["transforms"])
    return r.made("sum", "predicted time", more["terms"]["seconds"], "s",
                  Term("batched product", kernel.value, "s", kernel.rule, kernel.parts),
                  r.made("sum", "transforms", transforms, "s", *ways))  # fmt: skip


def _transform_term(name: str, p: dict[str, float]) -> Term:
    """Return the term for the time of one transform kernel of Winograd's algorithm."""
    r = TermBuilder()
    work = [r.given("DRAM", p["dram_s"], "s", "global"), r.given("L2", p["l2_s"], "s", "l2"),
            r.given("instructions", p["compute_s"], "s"), r.given("latency", p["latency_s"], "s")]  # fmt: skip
    slowest = r.made("largest", "slowest of them", max(t.value for t in work), "s", *work)
    return r.made("sum", name, p["seconds"], "s", slowest, r.given("launch", p["launch_s"], "s"))


def _kernel_term(p: Parts) -> Term:
    """Return the term for the predicted time of a kernel, including the kernel that adds a split reduction's parts."""
    r, terms, waves, spec = TermBuilder(), p["terms"], p["waves"], p["spec"]
    each = []
    for n, name in enumerate(_WAVES):
        at = TermBuilder(wave=n)
        count, all_waves = at.given("number of waves", waves.count), r.number(waves.count.sum(axis=0))
        if count.value:  # a kind without waves adds nothing
            seconds, name = _wave_term(p, at), _ONLY if all_waves == 1 else name
            each.append(Term(name, count.value * seconds.value, "s", "product", (count, seconds)))
    running = r.made("sum", "waves of blocks", p["every"], "s", *each)
    if spec.power_w is not None and r.number(p["power"]):
        running = r.made(
            "largest", "waves of blocks, and what they draw", p["running"], "s", running, _power_term(p, r)
        )
    launch = r.made("product", "launches", terms["launch_s"], "s", r.given("number of launches", p["launches"]),
                    r.given("time of a launch", spec.execution.launch_s, "s"))  # fmt: skip
    combining = r.given("adding the parts of the reduction", p["combining"], "s")
    return r.made("sum", "predicted time", terms["seconds"], "s", running, launch, combining)


def _power_term(p: Parts, at: TermBuilder) -> Term:
    """Return the term for the minimum time that a launch takes within the board's power limit."""
    spec, batch, each = p["spec"], p["batch"], cycle_energies_j(p["batch"], p["spec"])
    assert each is not None
    busy = busy_cycles(batch, spec, p["work"])
    idle = non_busy_cycles(spec, busy, p["core_total"])
    energies = [
        at.made("product", f"energy of {name} cycles", n * e, "J", at.given(f"{name} cycles of all units", n, "cycles"),
                at.given("energy of such a cycle", e, "J"))
        for name, n, e in zip(("busy", "other"), (busy, idle), each, strict=True)
    ]  # fmt: skip
    name, joules = "energy of all cycles", busy * each[0] + idle * each[1]
    for layer, term, e in zip(("L2", "DRAM"), ("l2_bytes", "dram_bytes"), byte_energies_j(spec), strict=True):
        if e:
            moved = p["terms"][term]
            name, joules = "energy of all cycles and bytes", joules + moved * e
            factors = at.given(f"bytes through {layer}", moved), at.given("energy of such a byte", e, "J")
            energies.append(at.made("product", f"energy of bytes through {layer}", moved * e, "J", *factors))
    drawn = at.made("sum", name, joules, "J", *energies)
    return at.made("quotient", "at the limit of power", p["power"], "s", drawn,
                   at.given(_power_label(spec), power_left_for_cycles_w(spec), "W"))  # fmt: skip


def _power_label(spec: DeviceSpec) -> str:
    """Return the label of the power that remains for cycles and bytes."""
    standing = spec.execution.standing_w
    return f"most the board draws beside the {standing:g} W it always does" if standing else "most the board draws"


def _wave_term(p: Parts, at: TermBuilder) -> Term:
    work: BlockWork = p["work"]
    hidden = _overlapped_phases_term(p, at)
    issuing = at.made("quotient", "issue slots", p["issuing"], "s", _issue_cycles_term(p, work, at), _clock_term(p, at))
    slowest = at.made("largest", "phases of resident blocks", p["slowest"], "s", hidden, issuing)
    filled = at.made("sum", "phases, first tile and results", p["filled"], "s", slowest,
                     at.given("wait of a matrix unit for the first tile", p["fill"], "s"),
                     at.given("stores of results that nothing hides", p["stores"], "s"))  # fmt: skip
    return at.made("largest", "time of a wave", p["seconds"], "s", filled, _latency_chain_term(p, at))


def _overlapped_phases_term(p: Parts, at: TermBuilder) -> Term:
    """Return the term for the time in which resident blocks pass through memory, copies and arithmetic."""
    memory, pipes = _memory_term(p, at), _pipe_terms(p, at)
    if "loads" in p:
        stores = at.given("stores of results that nothing hides", p["stores"], "s")
        memory = at.made("difference", "memory but for them", p["loads"], "s", memory, stores)
    groups = at.given("blocks out of step", p["customers"])
    if "ahead" not in p:
        return at.made("alternating", "memory and arithmetic", p["hidden"], "s", groups, memory, *pipes)
    plain = at.made("alternating", "without later tiles", p["plain"], "s", groups, memory, *pipes)
    both = at.made("alternating", "copies and arithmetic", p["both"], "s", groups, *pipes)
    in_flight = at.given("tiles in flight", p["in_flight"])
    ahead = at.made("alternating", "with later tiles on their way", p["ahead"], "s", in_flight, memory, both)
    first = at.made("quotient", "of the first tile", (p["plain"] - p["ahead"]) / p["batch"].steps, "s",
                    at.made("difference", "hidden by later tiles", p["plain"] - p["ahead"], "s", plain, ahead),
                    at.given("reduction steps", p["batch"].steps))  # fmt: skip
    return at.made("sum", "memory and arithmetic", p["hidden"], "s", ahead, first)


def _memory_term(p: Parts, at: TermBuilder) -> Term:
    """Return the term for the time that memory takes for a wave."""
    bus, spec = p["bus"], p["spec"]
    far = spec.layer("global")
    share = at.given("share of the blocks", p["share"])
    moved = at.made(
        "product", "bytes of the wave", bus["wave_bytes"], "bytes", _launch_bytes_term(p, at, "global"), share
    )
    drawn = at.made("quotient", "bytes at the bandwidth drawn", bus["drawn"], "s", moved, _bandwidth_term(p, at),
                    layer="global")  # fmt: skip
    dram = drawn
    if "waited" in bus:
        peak = at.given("peak bandwidth", bus["peak"], "bytes/s", "global")
        rounds = at.made("product", "rounds of loads, each waited for", bus["rounds"] * far.latency_s, "s",
                         at.given("rounds of loads", bus["rounds"]),
                         at.given("latency", far.latency_s, "s", "global"))  # fmt: skip
        at_peak = at.made("quotient", "bytes at the peak bandwidth", bus["wave_bytes"] / bus["peak"], "s",
                          moved, peak)  # fmt: skip
        waited = at.made("sum", "loads waited for one by one", bus["waited"], "s", at_peak, rounds)
        dram = at.made("smallest", "DRAM", p["dram"], "s", drawn, waited, layer="global")
    through = _launch_bytes_term(p, at, "l2")
    l2_bytes = at.made("product", "bytes of the wave", p["terms"]["l2_bytes"] * p["share"], "bytes", through, share)
    l2_bandwidth = at.given("bandwidth", spec.layer("l2").bandwidth_bytes_per_s, "bytes/s", "l2")
    l2 = at.made("quotient", "L2", p["l2"], "s", l2_bytes, l2_bandwidth, layer="l2")
    if p["access"] is None:
        return at.made("largest", "memory", p["memory"], "s", dram, l2)
    slower = at.made("largest", "DRAM or L2", p["moved"], "s", dram, l2)
    access = at.given("load and store pipes", p["access"], "s")
    exponent = at.given("exponent of the knee", far.saturation_exponent or 2.0)
    return at.made("knee", "memory", p["memory"], "s", slower, access, exponent)


def _launch_bytes_term(p: Parts, at: TermBuilder, layer: str) -> Term:
    """Return the term for the bytes that the launch moves through a layer, by source of traffic."""
    name, index = ("dram_bytes", 2) if layer == "global" else ("l2_bytes", 1)
    every = [at.given(m[0], m[index], "bytes", layer) for m in p["by_tensor"]]
    parts = [t for t in every if t.value] or every[:1]  # zeros leave a sum unchanged
    where = "DRAM" if layer == "global" else "L2"
    return at.made("sum", f"bytes of the launch, {where}", p["terms"][name], "bytes", *parts, layer=layer)


def _bandwidth_term(p: Parts, at: TermBuilder) -> Term:
    """Return the term for the bandwidth that the wave's loads achieve."""
    far, bus = p["spec"].layer("global"), p["bus"]
    peak = at.given("peak bandwidth", bus["peak"], "bytes/s", "global")
    if not far.bandwidth_per_teu_bytes_per_s:
        return peak
    per_teu = at.given("bandwidth of one load per thread of a TEU", far.bandwidth_per_teu_bytes_per_s, "bytes/s")
    loads = at.given("TEUs' loads in flight", bus["loading_warps"])
    drawn = at.made("product", "bandwidth of those loads alone", loads.value * per_teu.value, "bytes/s", loads, per_teu)
    exponent = at.given("exponent of the knee", far.saturation_exponent or 2.0)
    return at.made("saturating", "bandwidth drawn", bus["bandwidth"], "bytes/s", drawn, peak, exponent, layer="global")


def _pipe_terms(p: Parts, at: TermBuilder) -> tuple[Term, ...]:
    """Return the terms for arithmetic and copies, or for their sum if they share pipes."""
    b, clock = p["waves"].per_unit, _clock_term(p, at)
    arithmetic = at.made("quotient", "arithmetic", p["arithmetic"], "s", _arithmetic_cycles_term(p, b, at), clock)
    copying = at.made("quotient", "instructions of copies", p["copying"], "s", _copy_cycles_term(p, b, at), clock)
    if p["pipes"] == 2:
        return arithmetic, copying
    both = at.made("sum", "arithmetic and copies", p["arithmetic"] + p["copying"], "s", arithmetic, copying)
    return (both,)


def _clock_term(p: Parts, at: TermBuilder) -> Term:
    return at.given("clock", p["spec"].clock_hz, "Hz")


def _teus_per_scheduler_term(p: Parts, blocks: Any, at: TermBuilder) -> Term:
    """Return the term for the number of TEUs per scheduler."""
    work, schedulers = p["work"], p["spec"].teu.schedulers_per_unit
    return at.made("quotient", "TEUs of a scheduler", work.teus * blocks / schedulers, "", _teus_per_unit_term(p,
        blocks, at),
                   at.given("schedulers of a unit", schedulers))  # fmt: skip


def _teus_per_unit_term(p: Parts, blocks: Any, at: TermBuilder) -> Term:
    teus = p["work"].teus
    return at.made("product", "TEUs of a unit", teus * blocks, "", at.given("TEUs of a block", teus),
                   at.given("blocks of a unit", blocks))  # fmt: skip


def _arithmetic_cycles_term(p: Parts, blocks: Any, at: TermBuilder) -> Term:
    """Return the term for the cycles of :meth:`BlockWork.arithmetic` with ``blocks`` blocks on a unit."""
    work: BlockWork = p["work"]
    share, details = _teus_per_scheduler_term(p, blocks, at), work.details(blocks, p["spec"].teu.schedulers_per_unit)
    whole = at.made("ceiling", "TEUs of the busiest scheduler", details["whole"], "", share)
    products = at.made("product", "FMA pipes", details["fma"], "cycles", whole,
                       at.given("cycles of a register tile", work.fma, "cycles"))  # fmt: skip
    loops = at.made("product", "operand loads and loop", details["overhead"], "cycles", share,
                    at.given("cycles around a register tile", work.overhead, "cycles"))  # fmt: skip
    chain = at.given("latency of a register tile", work.chain, "cycles")
    busy = at.made("sum", "one register tile of every TEU", details["busy"], "cycles", chain, products, loops)
    slots = at.made("product", "issue slots of it", details["issue"], "cycles", share,
                    at.given("issue slots of a register tile", work.issue, "cycles"))  # fmt: skip
    reads = at.made("product", "scratchpad reads of it", details["scratchpad"], "cycles", _teus_per_unit_term(p, blocks,
                                                                                                           at),
                    at.given("wavefronts of a register tile", work.scratchpad, "cycles"), layer="shared")  # fmt: skip
    group = at.made("largest", "slowest pipe", details["group"], "cycles", busy, slots, reads)
    groups = at.made("product", "register tiles of a step", details["groups"], "cycles",
                     at.given("register tiles along a step", work.groups), group)  # fmt: skip
    addresses = at.made("product", "multiplications of addresses", details["multiplies"], "cycles", share,
                        at.given("cycles of a TEU", work.multiplies, "cycles"))  # fmt: skip
    step = at.made("sum", "one reduction step", details["step"], "cycles", groups, addresses)
    steps = at.made("product", "all reduction steps", details["steps"], "cycles",
                    at.given("reduction steps", work.steps), step)  # fmt: skip
    return at.made("sum", "cycles of arithmetic", details["cycles"], "cycles", steps,
                   at.given("final exchange", work.combine, "cycles"))  # fmt: skip


def _copy_cycles_term(p: Parts, blocks: Any, at: TermBuilder) -> Term:
    """Return the term for the cycles of :meth:`BlockWork.copy_cycles` with ``blocks`` blocks on a unit."""
    work: BlockWork = p["work"]
    copies = at.made("product", "copies of all steps", work.steps * work.copies, "cycles",
                     at.given("reduction steps", work.steps),
                     at.given("cycles of a TEU's copies", work.copies, "cycles", "shared"))  # fmt: skip
    each = at.made("sum", "copies and stores of a TEU", work.steps * work.copies + work.finish, "cycles", copies,
                   at.given("place, epilogue and stores", work.finish, "cycles"))  # fmt: skip
    every = work.copy_cycles(blocks, p["spec"].teu.schedulers_per_unit)
    return at.made("product", "cycles of copies", every, "cycles", _teus_per_scheduler_term(p, blocks, at), each)


def _issue_cycles_term(p: Parts, work: BlockWork, at: TermBuilder) -> Term:
    """Return the term for the cycles of :meth:`BlockWork.issue_cycles`."""
    per_unit, schedulers = p["waves"].per_unit, p["spec"].teu.schedulers_per_unit
    share = _teus_per_scheduler_term(p, per_unit, at)
    arithmetic = work.teus * per_unit / schedulers * work.steps * work.groups * work.issue
    made = at.made("product", "slots of the arithmetic", arithmetic, "cycles", share,
                   at.given("reduction steps", work.steps), at.given("register tiles along a step", work.groups),
                   at.given("issue slots of a register tile", work.issue, "cycles"))  # fmt: skip
    return at.made("sum", "slots of all instructions", work.issue_cycles(per_unit, schedulers), "cycles", made,
                   _copy_cycles_term(p, per_unit, at))  # fmt: skip


def _overlapped_block_term(p: Parts, arithmetic: Term, copies: Term, at: TermBuilder) -> Term:
    """Return the term for the cycles of one block whose products overlap its copies and precede its stores."""
    stores = at.given("epilogue and stores", p["work"].store_cycles(1.0, p["spec"].teu.schedulers_per_unit), "cycles")
    products = Term("products and stores", arithmetic.value + stores.value, "cycles", "sum", (arithmetic, stores))
    return Term("its cycles", max(products.value, copies.value), "cycles", "largest", (products, copies))


def _latency_chain_term(p: Parts, at: TermBuilder) -> Term:
    """Return the term for the time of one block that has its unit to itself."""
    latency, name = p["spec"].layer("global").latency_s or 0.0, "one block alone"
    arithmetic, copies = _arithmetic_cycles_term(p, 1.0, at), _copy_cycles_term(p, 1.0, at)
    cycles = Term("its cycles", arithmetic.value + copies.value, "cycles", "sum", (arithmetic, copies))
    if "beside" in p and at.number(p["beside"]):
        cycles = _overlapped_block_term(p, arithmetic, copies, at)
    alone = at.made("quotient", "its arithmetic and copies", p["alone"], "s", cycles, _clock_term(p, at))
    if "barriers" not in p:
        return at.made("sum", name, p["chain"], "s", alone, at.given("latencies of its rows", p["waits"], "s"))
    barriers = at.given("barriers", p["barriers"], "s")
    if "hops" in p:
        waits = at.made("product", "latencies it waits for", p["hops"] * latency, "s",
                        at.given("waits", p["hops"]), at.given("latency", latency, "s", "global"))  # fmt: skip
        return at.made("sum", name, p["chain"], "s", alone, waits, barriers)
    first = at.made("product", "first tile and results", 2 * latency, "s", at.given("waits", 2.0),
                    at.given("latency", latency, "s", "global"))  # fmt: skip
    waiting = at.given("latencies that later tiles leave", p["waits"], "s")
    longer = max(alone.value, waiting.value)
    slower = at.made("largest", "work or waits", longer, "s", alone, waiting)
    return at.made("sum", name, p["chain"], "s", first, slower, barriers)
