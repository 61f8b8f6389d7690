"""``explain`` agrees with the model to the last digit, says what stopped growth, and recommends what gains."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

import roller
from roller import ops
from roller.errors import TileError
from roller.explanation.explanation import ordered_sections
from roller.explanation.reconstruct_construction_steps import reconstruct_construction
from roller.explanation.render_sections import render_text
from roller.templates.common.data_reuse_score import reuse_score, traffic_and_footprint
from roller.templates.common.growth_trace import GrowthTrace
from roller.templates.gpu.tiled.candidates import blocks, grow_register_tiles
from roller.tile.geometry import Geometry
from tests.perf.test_terms import rebuilt

CASES = {
    "v100": ops.matmul(512, 768, 1024),
    "h200": ops.matmul(1024, 512, 1024, dtype="float16"),
    "mi250x": ops.softmax((512, 1000)),
    "cpu-avx512": ops.matmul(256, 192, 320),
    "cpu-neon": ops.conv2d(1, 32, 14, 14, 64, 3, 3, padding=1, epilogue=("bias", "relu")),
    "a100": ops.conv2d(4, 32, 28, 28, 64, 3, 3, padding=1),
    "k80": ops.depthwise_conv2d(4, 32, 28, 28, 3, 3, padding=1),
}


#: The others take as long, and meet the same code with other structures.
FAST = ("v100", "h200", "mi250x", "cpu-avx512")


@pytest.fixture(scope="module", params=[c if c in FAST else pytest.param(c, marks=pytest.mark.slow) for c in CASES])
def explained(request):
    """Return a device, an expression, and the explanation of its best program."""
    return request.param, CASES[request.param], roller.explain(CASES[request.param], request.param)


def test_the_printed_terms_rebuild_the_price_to_the_last_digit(explained):
    device, expr, found = explained
    best = roller.construct(expr, device)[0]
    data = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert rebuilt(data["time"]) == data["predicted_s"] == best.estimate.seconds == found.estimate.seconds
    assert found.estimate == best.estimate and found.program == best.program and found.rank == 1
    for r in data["rivals"]:
        assert rebuilt(r["time"]) == r["predicted_s"] == roller.predict(expr, device, r["asked"]).seconds
        assert r["chosen_s"] == data["predicted_s"]
        assert r["percent"] == 100 * (r["predicted_s"] / r["chosen_s"] - 1)


def test_a_leaf_that_changes_changes_the_price(explained):
    """The rebuilt price depends on the leaves: it is not a number carried along."""
    data = explained[2].to_dict()["time"]
    node = data
    while "parts" in node:
        node = max(node["parts"], key=lambda p: p["value"] if p["unit"] == "s" else 0.0)
    node["value"] *= 2
    assert rebuilt(data) > explained[2].estimate.seconds


def test_what_stops_a_tile_is_a_capacity_an_end_or_a_price(explained):
    device, expr, found = explained
    spec = roller.load_spec(device)
    assert found.stops
    for s in found.stops:
        if s.why == "covered":
            extents = {a.name: a.extent for a in found.program.axes}
            assert extents.get(s.axis, s.now) <= s.now
        elif s.why == "price":
            assert s.seconds == roller.predict(expr, spec, s.program).seconds
            assert s.percent == 100 * (s.seconds / found.estimate.seconds - 1)
        else:
            assert s.why == "capacity" and any(c.isdigit() for c in s.detail)
    layers = {s.layer for s in found.stops}
    assert found.program.layers[-1] in layers


def test_lifts_gain_what_construct_shows(explained):
    device, expr, found = explained
    assert found.lifts
    for e in found.lifts:
        changed = roller.load_spec(device, {e.field: e.best.value})
        assert e.best.seconds == (roller.construct(expr, changed)[0].estimate.seconds,)
        assert e.best.percent < -0.1


def test_layers_and_facts_are_terms_of_the_estimate(explained):
    _, _, found = explained
    terms = found.estimate.terms
    last = found.layers[-1]
    assert (last.seconds, last.moved_bytes) == (terms.get("dram_s"), terms.get("dram_bytes"))
    assert {x.name: x.tile for x in found.layers if x.tile} == {x: found.program.tile(x) for x in found.program.layers}
    facts = {f.name: f.value for f in found.facts}
    assert facts.get("blocks", terms.get("blocks")) == terms.get("blocks")
    assert facts.get("tasks", terms.get("tasks")) == terms.get("tasks")
    r = found.roof
    assert r.roof_s == max(r.flops / r.peak_flops_per_s, r.compulsory_bytes / r.bandwidth_bytes_per_s)
    assert r.share == r.roof_s / found.estimate.seconds


def test_text_fits_80_columns_and_html_is_whole(explained):
    _, _, found = explained
    lines = render_text(ordered_sections(found)).splitlines()
    assert max(map(len, lines)) <= 80 or all(" " not in x.strip() for x in lines if len(x) > 80)
    for title in ("Why nothing is larger", "Memory, layer by layer", "Under the roofline"):
        assert title in lines
    page = found._repr_html_()
    assert page.count("<table>") == page.count("</table>") >= 4 and page.count("<tr>") == page.count("</tr>")
    assert str(found) == render_text(ordered_sections(found)) and len(repr(found)) < 200


def test_scores_of_the_steps_are_those_of_construction():
    """Every step of the road to a register tile, its score computed anew from traffic and footprint."""
    expr = CASES["v100"]
    found = roller.explain(expr, "v100")
    steps = [s for s in found.road.steps if s.layer == "register"]
    g = Geometry.of(found.program.expr)
    tile = np.ones((1, 3), np.int64)
    for s in steps:
        larger = tile.copy()
        axis = g.names.index(s.axis)
        assert tile[0, axis] == s.before
        larger[0, axis] = s.after
        assert s.score == reuse_score(traffic_and_footprint(g, tile), traffic_and_footprint(g, larger))[0]
        tile = larger
    assert tuple(tile[0]) == found.program.tiles[0][1]
    threads = {s.axis: s.after for s in found.road.steps if s.layer == "shared"}
    assert threads.items() <= found.program.threads.items()


def test_roads_lead_to_every_candidate_that_grew():
    spec, options = roller.load_spec("v100"), roller.ConstructOptions()
    found = roller.construct(CASES["v100"], spec)
    for c in found:
        assert reconstruct_construction(c.program, spec, options).steps, str(c.program)
    g, seen, of_blocks = Geometry.of(found[0].program.expr), GrowthTrace(), GrowthTrace()
    plain_tiles = grow_register_tiles(g, spec)
    assert (grow_register_tiles(g, spec, seen) == plain_tiles).all(), "being watched changes nothing"
    assert (blocks(g, spec, plain_tiles, options, of_blocks) == blocks(g, spec, plain_tiles, options)).all()
    assert seen.road((3, 5, 7)) is None


def test_a_program_may_be_named():
    expr, names = CASES["v100"], [str(c.program) for c in roller.construct(CASES["v100"], "v100")]
    found = roller.explain(expr, "v100", names[3])
    assert (found.rank, str(found.program), found.candidates) == (4, names[3], 10)
    assert [r.asked for r in found.rivals] == names[:3]
    other = names[0].replace("register[i=8 j=8", "register[i=4 j=4")
    assert other != names[0] and other not in names
    assert roller.explain(expr, "v100", other).rank is None
    with pytest.raises(TileError, match="axes of a form"):
        roller.explain(ops.softmax((8, 8)), "v100", names[0])


def test_an_explanation_of_a_kernel():
    expr = ops.matmul(64, 96, 32)
    kernel = roller.compile(expr, "v100", cache=False)
    found = kernel.explain()
    assert found.program == kernel.program and found.estimate == kernel.estimate and not found.notes
    assert kernel.why_not(kernel.program).verdict == "chosen"
    slower = kernel.why_not({"shared": {"i": 8, "j": 8, "k": 4}, "register": {"i": 1, "j": 1}})
    assert slower.chosen_s == kernel.estimate.seconds and slower.verdict == "slower"
    half = roller.load_spec("v100", {"units": 40})
    assert any("another specification" in n for n in roller.compile(expr, half, cache=False).explain("v100").notes) != (
        kernel.estimate.seconds == roller.predict(expr, half, kernel.program).seconds
    )
    assert math.isfinite(kernel.explain(half).estimate.seconds)
