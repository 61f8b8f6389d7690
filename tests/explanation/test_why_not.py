"""``compare_with_chosen`` names the capacity, the rule or the term, with the numbers of the model."""

from __future__ import annotations

import json

import pytest

import roller
from roller import ops
from roller.explanation.price_comparison import TermDifference, difference_sentence
from tests.perf.test_terms import rebuilt

MATMUL = ops.matmul(512, 768, 1024)
HALF = ops.matmul(1024, 512, 1024, dtype="float16")


@pytest.mark.parametrize(("tiles", "how"), [
    ({"shared": {"i": 64, "j": 64, "k": 8}, "register": {"i": 4, "j": 4}}, {}),
    ({"shared": {"i": 64, "j": 64, "k": 8}, "register": {"i": 4, "j": 4}}, {"stages": 2, "split_k": 4}),
    ({"shared": {"i": 100, "j": 60, "k": 7}, "register": {"i": 3, "j": 7}}, {}),
    ({"shared": {"i": 128, "j": 64, "k": 8}, "register": {"i": 8, "j": 8}}, {}),
])  # fmt: skip
def test_a_slower_one_is_slower_by_terms_that_rebuild_its_price(tiles, how):
    found = roller.why_not(MATMUL, "v100", tiles, **how)
    data = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    best = roller.construct(MATMUL, "v100")[0]
    assert found.verdict == "slower" and found.chosen == str(best.program)
    assert rebuilt(data["time"]) == data["predicted_s"] == roller.predict(MATMUL, "v100", tiles, **how).seconds
    assert data["chosen_s"] == best.estimate.seconds
    assert found.percent == 100 * (found.seconds / found.chosen_s - 1) > 0
    assert (found.road[0].own, found.road[0].other) == (found.seconds, found.chosen_s)
    assert len(found.road) >= 3 and found.road[-1].own != found.road[-1].other, "down to where it arises"
    own, other = roller.predict(MATMUL, "v100", tiles, **how).terms, best.estimate.terms
    assert {d.name: (d.own, d.other) for d in found.terms} == {n: (own[n], other[n]) for n in own if own[n] != other[n]}
    assert str(found.reason) in str(found) and difference_sentence(found.road) == found.reason


@pytest.mark.parametrize(("device", "tiles", "words"), [
    ("v100", {"shared": {"i": 256, "j": 256, "k": 64}, "register": {"i": 8, "j": 8}}, "scratchpad, v100 has 98304"),
    ("v100", {"shared": {"i": 256, "j": 256, "k": 8}, "register": {"i": 2, "j": 2}}, "16384 threads"),
    ("v100", {"shared": {"i": 64, "j": 64}, "register": {"i": 32, "j": 32}}, "registers per thread, v100 has 255"),
    ("cpu-avx512", {"register": {"i": 14, "j": 64}}, "the 32 vector registers"),
    ("v100", "gpu/tiled register[i=8 j=8 k=1] shared[i=99 j=64 k=8]", "multiple"),
    ("v100", {"nowhere": (1,)}, "no tiled layer"),
])  # fmt: skip
def test_an_illegal_one_is_illegal_by_a_capacity_or_a_rule(device, tiles, words):
    found = roller.why_not(MATMUL, device, tiles)
    assert found.verdict == "illegal" and words in found.reason
    assert found.seconds is None and found.percent is None and found.to_dict()["time"] is None
    assert str(found).startswith("illegal: ")


def test_the_chosen_one_is_named_as_such_and_its_equals_as_equal():
    best, *others = roller.construct(MATMUL, "v100")
    assert roller.why_not(MATMUL, "v100", best.program).verdict == "chosen"
    for c in others:
        found = roller.why_not(MATMUL, "v100", str(c.program))
        assert found.verdict == ("equal" if c.estimate.seconds == best.estimate.seconds else "slower")
        assert found.seconds == c.estimate.seconds


def test_a_faster_one_is_called_faster():
    """Held against the second of two candidates, the first is what the model would have."""
    slow = roller.construct(MATMUL, "v100")[-1].program
    from roller.explanation.why_not import compare_with_chosen

    best = roller.construct(MATMUL, "v100")[0].program
    found = compare_with_chosen(MATMUL, roller.load_spec("v100"), slow, best)
    assert found.verdict == "faster" and found.percent < 0 and "construction" in found.reason


def test_a_budget_of_construction_and_a_relaxed_rule_are_said():
    tiles = {"shared": {"i": 64, "j": 144, "k": 8}, "register": {"i": 8, "j": 12}}
    found = roller.why_not(MATMUL, "v100", tiles)
    assert found.budget == "116 registers of a thread for results and operands, 96 are usable"
    odd = roller.why_not(MATMUL, "v100", {"shared": {"i": 8, "j": 6, "k": 8}, "register": {"i": 2, "j": 2}})
    assert "execution_unit" in odd.relaxed


def test_a_matrix_program_is_held_against_the_winner():
    best, *others = roller.construct(HALF, "h200")
    found = roller.why_not(HALF, "h200", others[-1].program)
    assert found.seconds == others[-1].estimate.seconds and found.chosen_s == best.estimate.seconds
    plain = roller.why_not(HALF, "h200", {"shared": {"i": 64, "j": 64, "k": 16}, "register": {"i": 8, "j": 4}})
    assert plain.verdict == "slower" and plain.percent > 100, "without the matrix unit"


def test_a_sentence_leaves_out_what_only_passes_a_number_on():
    road = [TermDifference("a", 2.0, 1.0, ""), TermDifference("b", 2.0, 1.0, ""), TermDifference("c", 8.0, 4.0, "")]
    assert difference_sentence(road) == "a 2 against 1 <- c 8 against 4"
