"""A quarter hour on a GPU, rehearsed: which phases run, how long, what a cut loses, and where the next call goes on."""

from dataclasses import replace

import pytest

from benchmarks.gpu import contents, journal, rehearsal, rows, run, schedule
from benchmarks.gpu.plan import OPERATORS, VARIANTS, Planned, read_pack
from tests.benchmarks.gpu_packs import CARDS, write_names

FIRST_S, SECOND_S = 8 * 60.0, 3 * 60.0


def planned(name):
    operator = "matmul" if name in ("H0", "H1", "H2", "H3", "H4", "H5", "H6") else "conv2d"  # Triton runs products
    return Planned({"id": name, "op": operator, "dtype": "float32"}, ("all",))


@pytest.fixture(scope="module")
def names(tmp_path_factory):
    """A pack of names only, whose units are fewer than those of a real one, and take longer."""
    first, others = [f"H{n}" for n in range(24)], [f"M{n}" for n in range(48)]
    held, read = contents.contents(11), contents.schedule(())
    pretended_s = {**read.pretended_s, "check": (15.0, 0.9), "case": (6.0, 1.5)}
    told = replace(read, headline=tuple(first), pretended_s=pretended_s)
    ranks = {**dict.fromkeys(first, held.headline_top_k), **dict.fromkeys(others, held.more_top_k)}
    forms = {f"form{n}": 4 for n in range(50)}
    return write_names(tmp_path_factory.mktemp("names"), [planned(i) for i in ranks], told, forms, ranks, cases=25)


def spent(call):
    return {p.name: round(p.spent_s) for p in call.parts if p.spent_s}


@pytest.mark.slow
def test_the_headline_is_chosen_by_properties_and_covers_every_kind_of_operator():
    published = rows.rows()
    ids, by_id = contents.schedule(published).headline, {p.id: p for p in published}
    assert len(ids) == len(set(ids)) == 24
    kinds = {(by_id[i].row["op"], by_id[i].row["dtype"]) for i in ids}
    assert kinds >= {("matmul", t) for t in ("float32", "float16", "bfloat16", "int8")}
    assert kinds >= {("conv2d", "float32"), ("conv2d", "float16"), ("depthwise_conv2d", "float32")}
    assert {by_id[i].row["op"] for i in ids} >= {
        "pooling",
        "reduce",
        "softmax",
        "layer_norm",
        "rms_norm",
        "elementwise",
    }
    assert {by_id[i].row.get("KH") for i in ids if by_id[i].row["op"] == "conv2d"} >= {1, 3}
    beside = contents.more(published, ids, 48)
    assert len(beside) == 48 and not {p.id for p in beside} & set(ids)
    assert {p.row["op"] for p in beside} >= {"matmul", "conv2d", "depthwise_conv2d", "elementwise", "pooling", "reduce"}


def test_rules_take_rows_at_even_distances_of_their_work_and_none_twice():
    found = [
        Planned({"id": i, "op": "matmul", "flops": f}, ("all",)) for i, f in zip("abcd", (4, 3, 2, 1), strict=True)
    ]
    rules = [{"take": 2, "where": {"op": "matmul"}}, {"take": 2, "where": {"set": "all"}}]
    assert [p.id for p in contents.headline(found, rules)] == ["c", "a", "d", "b"]
    assert contents.headline(found, [{"take": 1, "where": {"op": "conv2d"}}]) == []


def test_time_is_divided_by_the_least_a_phase_needs_and_then_by_shares(names):
    table = names.schedule.phases
    given = dict(zip((r.name for r in table), schedule.budgets(table, FIRST_S), strict=True))
    assert given["correctness"] >= 150 and given["headline"] + given["headline-peers"] >= 270
    assert sum(given.values()) == pytest.approx(FIRST_S) and not given["models"] and not given["ncu"]
    long = dict(zip((r.name for r in table), schedule.budgets(table, 40 * 60.0), strict=True))
    assert sum(long.values()) == pytest.approx(2400) and all(long[r.name] >= r.begin_s for r in table)
    assert long["operators"] > long["peers"] > long["probes"] > long["races"]


def test_two_calls_play_the_phases_in_order_and_the_second_goes_on_where_the_first_was_cut(names, tmp_path):
    first = rehearsal.rehearsed(names, tmp_path, FIRST_S)
    # The headline ends early: the comparisons begin at once, and what they leave goes on to the phases after them.
    assert spent(first) == {"correctness": 154, "headline": 66, "headline-peers": 152, "probes": 44, "operators": 65}
    assert sum(p.spent_s for p in first.parts) == pytest.approx(FIRST_S)
    assert {n: len(lost) for n, lost in first.lost.items() if lost} == {"correctness": 1, "operators": 1}
    assert {k[0] for k in first.done["correctness"]} == {f"form{n}" for n in range(50)}  # one of every form at least
    second = rehearsal.rehearsed(names, tmp_path, SECOND_S)
    assert list(spent(second))[:3] == ["correctness", "operators", "peers"]
    assert second.done["correctness"][0] == first.lost["correctness"][0]
    assert not any(second.left[n] for n in ("correctness", "headline", "headline-peers", "probes", "operators"))
    for phase, done in first.done.items():
        assert not set(done) & set(second.done[phase])  # nothing is done twice
    _, kept = journal.read(tmp_path)
    assert sum(map(len, kept.records[VARIANTS].values())) == 200
    assert {r.status for found in kept.records[VARIANTS].values() for r in found.values()} == {"checked"}
    assert all(len(kept.records[OPERATORS][i]) == 4 for i in names.schedule.headline)


def test_a_kernel_that_hangs_costs_its_limit_and_no_more(names, tmp_path):
    hung = ("form0", "a")
    plain = rehearsal.rehearsed(names, tmp_path / "plain", FIRST_S)
    call = rehearsal.rehearsed(names, tmp_path / "hung", FIRST_S, hangs={hung: 20.0})
    each_s = names.schedule.pretended_s["check"][1]
    fewer = len(plain.done["correctness"]) - len(call.done["correctness"])
    assert fewer == pytest.approx((20.0 - each_s) / each_s, abs=2)
    assert spent(call)["correctness"] == spent(plain)["correctness"]  # the others lose nothing
    _, kept = journal.read(tmp_path / "hung")
    assert kept.records[VARIANTS]["form0"]["a"].status == "timeout"


def test_what_is_cut_first_is_the_last_row_and_correctness_is_cut_last(names, tmp_path):
    short = rehearsal.rehearsed(names, tmp_path, 100.0)
    assert list(spent(short)) == ["correctness"]
    told = rehearsal.plan_told(names, 8)
    order = [line.split("|")[1].strip() for line in told.splitlines() if line.startswith("| ")]
    assert order[1:5] == ["correctness", "headline", "headline-peers", "probes"]
    assert "| races | 0 | 50 | 1 |" in told


def test_the_rehearsal_is_a_command_and_says_that_nothing_was_measured(names, tmp_path, capsys):
    assert run.main(["--rehearse", "8,3", "--card", "h200", "--results", str(tmp_path / "r")], names.folder) == run.DONE
    told = capsys.readouterr().out
    assert told.startswith("Rehearsal for h200: pretended times, no measurement.")
    assert "Call 1, 8 minutes:" in told and "Call 2, 3 minutes:" in told and not (tmp_path / "r").exists()
    assert run.main(["--rehearse", "eight"], names.folder) == run.REFUSED
    assert "expected minutes such as 8,3" in capsys.readouterr().err
    assert run.main(["--plan", "--card", "v100"], names.folder) == run.REFUSED
    assert "expected one of the cards h100, h200" in capsys.readouterr().err


class FakePhase:
    """A phase that takes as long as it is given, or as it needs."""

    def __init__(self, name, needs_s, clock):
        self.name, self._needs_s, self._clock, self.given = name, needs_s, clock, []

    def left(self):
        return int(self._needs_s > 1e-6)

    expected = left

    def run(self, deadline):
        took = min(self._needs_s, deadline - self._clock())
        self.given.append(round(took))
        self._needs_s -= took
        self._clock.now += took


def test_what_the_last_phase_leaves_goes_to_the_first_that_was_cut():
    clock = rehearsal.FakeClock()
    table = [schedule.Row("operators", 0, 0.5, 2, ""), schedule.Row("peers", 0, 0.3, 2, ""),
             schedule.Row("ncu", 0, 0.2, 2, "")]  # fmt: skip
    own, peers, rest = (FakePhase(r.name, s, clock) for r, s in zip(table, (80, 500, 5), strict=True))
    parts = schedule.run_all([own, peers, rest], table, 100.0, clock, print, lambda name, why: None)
    # 50 s of its own share, 30 and 5 s of the others; of the 15 s left our own rows have all.
    assert (own.given, peers.given, rest.given) == ([50, 15], [30], [5])
    assert [round(p.spent_s) for p in parts] == [65, 30, 5] and clock.now == 100


def test_a_pack_is_read_for_the_card_that_is_named(names):
    assert read_pack(names.folder).device == "h100"
    assert read_pack(names.folder, "h200").kernels(OPERATORS).device == "h200"
    assert replace(names, device="h200").part("probes").name == "h200" and names.cards == CARDS
