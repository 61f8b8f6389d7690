"""What-ifs on graphs that are solved by hand.

A step of the graph: kernels of 100, 40, 20, 200 us forward, 300, 30, 60, 150 us backward, 10 and 10 us of update, a
microsecond between two; the first starts 8 us behind its launch. It takes 8 + 920 + 9 = 937 us.
"""

from __future__ import annotations

import ast
from itertools import pairwise
from pathlib import Path

import pytest

from roller.errors import RollerError
from roller.insight.cost.ring_all_reduce import Ring
from roller.insight.step.simulate import simulate
from roller.insight.whatif import whatifs
from roller.insight.whatif.collective_communication_times import (
    buckets_by_step,
    reduce_scatter_us,
    sparse_all_gather_us,
)
from roller.insight.whatif.primitives import remove, select
from roller.insight.whatif.whatifs import (
    AMP,
    DDP,
    DGC,
    WHATIFS,
    AddLayer,
    Batch,
    BlueConnect,
    CudaGraph,
    Device,
    ForeachOptimizer,
    Freeze,
    FusedOptimizer,
    FusePointwise,
    Gist,
    LoaderWorkers,
    Offload,
    OtherNetwork,
    OtherOptimizer,
    ParameterServer,
    Recompute,
    RemoveLayer,
    RestructuredNorm,
    Substitute,
    ZeroTime,
)
from tests.insight.step.graphs import GAP_US, STEP, shapes_of, training
from tests.offenders import every

STEP_US = 937.0


def took(change, graph=None):
    return simulate(change(training() if graph is None else graph)).makespan_us


def test_the_step_is_as_it_was_worked_out():
    assert simulate(training()).makespan_us == STEP_US


def test_amp_divides_products_by_three_and_the_rest_by_two_but_not_the_update():
    # 100/3 + 40/2 + 20/2 + 200/3 + 300/3 + 30/2 + 60/2 + 150/3 = 325, and the update's 20
    assert took(AMP(prices="factor")) == pytest.approx(8 + 325 + 20 + 9)
    # casts, 3 MB a megabyte of gradients read and written, behind the kernel of each: 7 us
    casts = took(
        AMP(), training().__class__(**{**vars(training()), "measured_kernels_us": {"cast": 7.0, "unscale": 5.0}})
    )
    assert casts == pytest.approx(8 + 325 + 20 + 9 + 2 * (7 + GAP_US))


def test_amp_leaves_integers_and_copies_alone():
    from dataclasses import replace

    graph = training(copy_us=50.0)
    integers = [
        replace(t, context=t.context._replace(shapes=((8,),), dtypes=("long int",))) if t.name == "relu relu1" else t
        for t in graph.tasks
    ]
    before = replace(graph, tasks=integers)
    after = AMP(prices="factor")(before)
    changed = {t.name for t in after.tasks if t.duration_us != graph.tasks[t.id].duration_us}
    assert changed == {
        "convolution conv1", "batch_norm norm1", "convolution conv2", "convolution_backward conv2",
        "threshold_backward relu1", "native_batch_norm_backward norm1", "convolution_backward conv1",
    }  # fmt: skip


def test_a_fused_optimizer_is_one_kernel_with_one_launch():
    # 20 us of update become one kernel of as much, a gap less
    assert took(FusedOptimizer("sgd", prices="factor")) == STEP_US - GAP_US
    graph = FusedOptimizer("sgd", prices="factor")(training())
    launches = select(graph, lambda t: t.kind == "launch" and t.context.phase == "optimizer")
    assert len(launches) == 1
    # SGD fused moves as many tensors as not fused: three
    assert took(FusedOptimizer("sgd")) == STEP_US - GAP_US


def test_a_restructured_norm_loses_activations_between_norm_and_convolution():
    # relu goes both ways (50 us and two gaps), norms halve (50 us)
    assert took(RestructuredNorm()) == STEP_US - 50 - 2 * GAP_US - 50
    # behind a sum the activation stays
    rows = [(p, layer, "aten::add" if layer == "norm1" and p == "forward" else o, us, s) for p, layer, o, us, s in STEP]
    kept = RestructuredNorm()(training(rows=rows))
    assert not kept.tasks[5].is_removed and kept.tasks[5].name == "relu relu1"


def test_ddp_reduces_buckets_behind_their_gradients_and_before_the_update():
    graph = training()
    prices = {**vars(graph), "measured_kernels_us": {"bucket": 0.0}}
    free = graph.__class__(**prices)
    two = DDP(2, bandwidth=10e9, latency_us=5.0, first_bytes=1 << 20)
    # 2 MB fill the first bucket behind conv2 (at 8+363+300 = 671 us): 2*(1/2)*2e6/1e10 = 200 us and 10 us of hops;
    # 1 MB the second behind conv1, whose kernel then ends at 671+1+30+1+60+1+150 (and two empty copies) : 100 + 10 us
    assert shapes_of(buckets_by_step(graph, 1 << 20)[0]) == [(2_000_000, 1, 9), (1_000_000, 1, 15)]
    reduced = two(free)
    run = simulate(reduced)
    times = {t.name: [] for t in reduced.tasks}
    for t in reduced.tasks:
        times[t.name].append((run.start_us[t.id], run.end_us[t.id]))
    one, then = times["all-reduce"]
    assert one[1] - one[0] == pytest.approx(210.0) and then[1] - then[0] == pytest.approx(110.0)
    assert one[0] == pytest.approx(8 + 360 + 4 + 300 + GAP_US) and then[0] >= one[1]
    assert min(start for start, _ in times["add_"]) >= then[1]
    # as many bytes in one bucket start only behind the last gradient
    late = simulate(DDP(2, bandwidth=10e9, latency_us=5.0, first_bytes=1 << 30)(free)).makespan_us
    assert late > run.makespan_us > STEP_US


def test_one_device_reduces_nothing():
    graph = training()
    assert DDP(1, bandwidth=10e9, latency_us=5.0)(graph).tasks == graph.tasks


def test_a_parameter_server_pulls_before_the_next_forward():
    plain = ParameterServer(servers=2, bandwidth=1e9, latency_us=0.0, slice_bytes=float(10**9), priority=False)
    graph = plain(training(steps=3))
    pulls = [t for t in graph.tasks if t.kind == "receive"]
    assert len(pulls) == 6 and {t.duration_us for t in pulls} == {1000.0, 500.0}  # half of it stays on the machine
    readers = {(d.source, d.target) for d in graph.dependencies if graph.tasks[d.source].kind == "receive"}
    first = {graph.tasks[target].context[:3] for _, target in readers}
    assert first == {(1, "forward", "conv1"), (1, "forward", "conv2"), (2, "forward", "conv1"), (2, "forward", "conv2")}
    assert not [t for t in graph.tasks if t.context.phase == "optimizer" and not t.is_removed]


def test_priority_pulls_what_the_next_forward_needs_first():
    p3 = ParameterServer(servers=2, bandwidth=1e9, latency_us=0.0, slice_bytes=1e5)
    plain = ParameterServer(servers=2, bandwidth=1e9, latency_us=0.0, slice_bytes=1e12, priority=False)
    graph = training(steps=3)
    assert took(p3, graph) < took(plain, graph)
    sliced = p3(graph)
    assert len([t for t in sliced.tasks if t.kind == "send"]) == 3 * (20 + 10)
    priorities = {t.context.module: t.priority for t in sliced.tasks if t.kind == "send" and t.context.iteration == 0}
    assert priorities["conv1"] > priorities["conv2"]


def test_blueconnect_goes_down_the_levels_and_back_up():
    graph = training()
    free = graph.__class__(**{**vars(graph), "measured_kernels_us": {"bucket": 0.0}})
    reduced = DDP(8, bandwidth=10e9, latency_us=0.0, first_bytes=1 << 30)(free)
    split = BlueConnect((4, 2), (40e9, 10e9), latency_us=0.0)(reduced)
    steps = [t for t in split.tasks if t.lane.name.startswith("level")]
    assert [(t.name, t.lane.name) for t in steps] == [
        ("reduce-scatter", "level 0"), ("reduce-scatter", "level 1"),
        ("all-gather", "level 1"), ("all-gather", "level 0"),
    ]  # fmt: skip
    # 3 MB over four: 3/4*3e6/40e9 = 56.25 us; then 0.75 MB over two: 1/2*0.75e6/10e9 = 37.5 us
    assert [t.duration_us for t in steps] == pytest.approx([56.25, 37.5, 37.5, 56.25])
    run = simulate(split)
    assert [run.start_us[b.id] >= run.end_us[a.id] for a, b in pairwise(steps)] == [True] * 3
    assert simulate(reduced).makespan_us - run.makespan_us == pytest.approx(7 / 8 * 2 * 3e6 / 10e9 * 1e6 - 187.5)


def test_a_substitution_removes_scales_and_adds():
    both = Substitute(remove=("relu1",), scale={"conv2": 0.5}, add={"norm1": 1})
    # relu: 50 us and two gaps go; conv2: 250 us go; norm: 100 us and two gaps come
    assert took(both) == pytest.approx(STEP_US - 50 - 250 + 100)


def test_offloaded_maps_leave_behind_forward_and_come_back_before_backward():
    graph = Offload("conv2", bandwidth=1e9)(training())  # 1 MiB: 1048.576 us each way
    run = simulate(graph)
    out, back = (next(t for t in graph.tasks if t.name == name) for name in ("offload", "prefetch"))
    assert run.start_us[out.id] == 8 + 360 + 3 and run.start_us[back.id] == run.end_us[out.id]
    backward = next(t for t in graph.tasks if t.name == "convolution_backward conv2")
    assert run.start_us[backward.id] == run.end_us[back.id] == pytest.approx(371 + 2 * 1048.576)
    # a copy that nothing waits for costs nothing
    fast = Offload("conv1", bandwidth=1e12)(training())
    assert simulate(fast).makespan_us == pytest.approx(STEP_US, abs=0.1)
    waits = Offload("norm1", bandwidth=1e9, waits=True)(training())
    assert simulate(waits).start_us[5] == pytest.approx(8 + 100 + 1 + 40 + 1048.576)


def test_gist_encodes_behind_forward_and_decodes_ahead_of_backward():
    graph = training()
    priced = graph.__class__(**{**vars(graph), "measured_kernels_us": {"encode": 5.0, "decode": 7.0}})
    # conv1, norm1, relu1, conv2: four maps, each with a gap
    assert took(Gist(), priced) == STEP_US + 4 * (5 + 7 + 2 * GAP_US)
    assert took(Gist("relu*"), priced) == STEP_US + 5 + 7 + 2 * GAP_US


def test_dgc_sends_a_share_and_passes_over_gradients_twice():
    graph = training()
    priced = graph.__class__(**{**vars(graph), "measured_kernels_us": {"bucket": 0.0, "compress": 5.0, "unpack": 7.0}})
    reduced = DDP(4, bandwidth=1e9, latency_us=0.0, first_bytes=1 << 30)(priced)
    sparse = DGC(4, bandwidth=1e9, density=0.01)(reduced)
    sent = next(t for t in sparse.tasks if t.kind == "collective")
    assert sent.duration_us == pytest.approx(3 * 0.01 * 3e6 * 2 / 1e9 * 1e6)
    names = [t.name for t in sparse.tasks]
    assert names.count("compress") == 1 and names.count("unpack") == 1
    assert simulate(sparse).makespan_us < simulate(reduced).makespan_us


def test_workers_load_beside_training():
    graph = training(steps=12, data_us=500.0)
    before = simulate(graph).makespan_us
    many = simulate(LoaderWorkers(4)(graph))
    # loading is gone but for the fetch of each batch, 1900 us by host_costs.yaml, which is longer here; the first
    # worker has a quarter of its first batch before it when the profile begins
    assert many.makespan_us - before == pytest.approx(12 * (1900 - 500) + 500 / 4)
    slow = training(steps=12, data_us=50_000.0)
    ready = LoaderWorkers(workers=1, prefetch=1)(slow)
    # one worker loads a batch in 50 ms, and every step waits for it
    assert 12 * 50_000 < simulate(ready).makespan_us < 12 * 50_000 + 12 * 3000
    assert simulate(LoaderWorkers(4, 2)(slow)).makespan_us < simulate(ready).makespan_us / 3


def test_a_removed_layer_takes_its_share_of_the_update_along():
    # conv2: 500 us and two gaps; two thirds of the parameters, so two thirds of 20 us, and one of two kernels
    assert took(RemoveLayer("conv2")) == pytest.approx(STEP_US - 500 - 2 - 40 / 3 - 1)
    assert took(RemoveLayer("relu1")) == STEP_US - 52
    with pytest.raises(RollerError, match="none of its 4 matches"):
        RemoveLayer("conv3")(training())


def test_an_added_layer_is_as_long_as_its_like():
    assert took(AddLayer("conv2", times=2)) == pytest.approx(STEP_US + 2 * 502 + 2 * 40 / 3)


def test_a_batch_grows_kernels_above_their_floor():
    assert took(Batch(2, floor_us=0.0)) == STEP_US + 900
    assert took(Batch(2, floor_us=20.0)) == STEP_US + 900 - 7 * 20 - 20  # relu's 20 us is all floor


def test_frozen_layers_before_the_first_that_learns_have_no_backward():
    # conv1 and all before conv2: their backward goes (240 us, three gaps), half of conv2's, whose input needs none
    # (150 us), a third of the update (20/3 us and one of its two kernels)
    assert took(Freeze(("conv1", "norm1", "relu1"))) == pytest.approx(STEP_US - 243 - 150 - 20 / 3 - 1)
    # in the middle half of a layer's backward goes
    assert took(Freeze("conv2")) == pytest.approx(STEP_US - 150 - 40 / 3 - 1)


def test_another_optimizer_has_other_kernels():
    rows = (*STEP[:8], *(("optimizer", "", f"aten::k{n}", 10.0, ()) for n in range(18)))
    graph = training(rows=rows)
    # Adam's nine for each of two parameters, 180 us, become one each of 3/18 of the time
    after = OtherOptimizer("sgd", "adam")(graph)
    assert simulate(graph).makespan_us - simulate(after).makespan_us == pytest.approx(150 + 16)


def test_groups_of_an_update_lose_what_each_kernel_takes_anyway():
    # the shortest of ten kernels takes 10 us: 20 us of two become 10 us of one
    assert took(ForeachOptimizer()) == STEP_US - 11


def test_recomputed_blocks_run_once_more_before_their_backward():
    assert took(Recompute(("conv2", "relu1"))) == STEP_US + 201 + 21
    graph = Recompute(("conv2",))(training())
    run = simulate(graph)
    again = next(t for t in graph.tasks if t.id >= 20 and t.kind == "kernel")
    assert run.start_us[again.id] == 8 + 360 + 4 and run.start_us[9] == run.end_us[again.id] + 1


def test_pointwise_chains_take_as_long_as_their_longest():
    rows = [(p, "block" if o in ("aten::batch_norm", "aten::relu") else layer, o, us, s) for p, layer, o, us, s in STEP]
    assert took(FusePointwise(), training(rows=rows)) == STEP_US - 20 - 1
    assert took(FusePointwise()) == STEP_US  # of different layers


def test_a_captured_graph_is_launched_once():
    tiny = [(p, layer, o, 1.0, s) for p, layer, o, _, s in STEP]
    graph = training(rows=tiny)  # bound by launches: the tenth at 54 us, its kernel from 62 to 63
    assert simulate(graph).makespan_us == 63
    # one call of 10 us; kernels from 8 us on, a gap between two
    assert took(CudaGraph(), graph) == 8 + 10 + 9


def test_another_network_scales_transfers():
    graph = training()
    reduced = DDP(2, bandwidth=10e9, latency_us=0.0)(
        graph.__class__(**{**vars(graph), "measured_kernels_us": {"bucket": 0.0}})
    )
    sums = [
        sum(t.duration_us for t in g.tasks if t.kind == "collective") for g in (reduced, OtherNetwork(4.0)(reduced))
    ]
    assert sums[0] == 4 * sums[1] > 0


def test_what_is_free_takes_no_time():
    assert took(ZeroTime(phase="optimizer")) == STEP_US - 22
    assert took(ZeroTime(kind="kernel", layers="conv*")) == STEP_US - 750 - 4
    with pytest.raises(RollerError, match="got none"):
        ZeroTime(kind="collective")(training())
    with pytest.raises(RollerError, match="got none"):
        ZeroTime()(training())


def test_another_device_prices_kernels_by_what_bounds_them():
    from dataclasses import replace

    from roller.hardware import load_spec

    graph = replace(training(), device=load_spec("v100"))
    same = Device("v100")(graph)
    assert [t.duration_us for t in same.tasks] == pytest.approx([t.duration_us for t in graph.tasks])
    other = Device("h100")(graph)
    v100, h100 = load_spec("v100").sustained, load_spec("h100").sustained
    memory = v100.memory_layers[-1].bandwidth_bytes_per_s / h100.memory_layers[-1].bandwidth_bytes_per_s
    relu = next(t for t in other.tasks if t.name == "relu relu1")
    assert relu.duration_us == pytest.approx(20 * memory)
    assert next(t for t in other.tasks if t.name == "convolution conv1").duration_us < 100 * memory
    with pytest.raises(RollerError, match="expected the device of the profile"):
        Device("h100")(training())


def test_formulae_of_collectives():
    assert Ring(4, 1e9, 5e-6).all_reduce_s(1e6) == pytest.approx(1e-6 * (2 * 3 / 4 * 1000 + 6 * 5))
    assert reduce_scatter_us(1e6, 4, 1e9, 5.0) == pytest.approx(3 / 4 * 1000 + 3 * 5)
    assert sparse_all_gather_us(1e6, 4, 1e9, 0.01, 4, 4) == pytest.approx(3 * 0.01 * 1000 * 2)
    assert sparse_all_gather_us(1e6, 4, 1e9, 0.01, 4, 2) == pytest.approx(3 * 0.01 * 1000 * 1.5)


@every("name", WHATIFS)
def test_every_whatif_names_itself_and_changes_no_graph_in_place(name):
    from dataclasses import MISSING, fields, replace

    from roller.hardware import load_spec

    kind = WHATIFS[name]
    needed = {f.name: {"layers": "conv2", "blocks": ("conv2",), "device": "a100"}[f.name]
              for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING}  # fmt: skip
    given = (
        {"kind": "kernel"}
        if name == "zero-time"
        else {"bandwidth": 1e9}
        if name in ("ddp", "parameter-server", "dgc")
        else {}
    )
    change = kind(**needed, **given)
    graph = replace(training(steps=3, data_us=50.0), device=load_spec("v100"))
    before = repr((graph.tasks, graph.dependencies))
    first, second = change(graph), change(graph)
    assert repr((graph.tasks, graph.dependencies)) == before
    assert first.name == f"{graph.name} + {change}" and type(change).__name__ in str(change)
    assert (first.tasks, first.dependencies) == (second.tasks, second.dependencies)
    assert simulate(first) == simulate(second)
    assert not kind.__doc__.startswith(f"{kind.__name__}(")  # what a dataclass writes where nobody did


def test_whatifs_are_small():
    folder = Path(whatifs.__file__).parent
    for file in folder.glob("*.py"):
        if file.name == "__init__.py":
            continue
        body = [n for n in ast.parse(file.read_text()).body if isinstance(n, (ast.ClassDef, ast.FunctionDef))]
        lines = set()
        for node in body:
            docs = {
                id(x.value) for x in ast.walk(node) if isinstance(x, ast.Expr) and isinstance(x.value, ast.Constant)
            }
            lines |= {x.lineno for x in ast.walk(node) if hasattr(x, "lineno") and id(x) not in docs
                      and not (isinstance(x, ast.Expr) and id(x.value) in docs)}  # fmt: skip
        assert len(lines) <= 25, (file.name, len(lines))


@every(
    "make",
    [
        lambda: AMP("int8"), lambda: DDP(0), lambda: DDP(2.5), lambda: DDP(2, bandwidth=-1.0), lambda: Batch(0.0),
        lambda: Batch(float("nan")), lambda: DDP("four"), lambda: FusedOptimizer("lion"), lambda: LoaderWorkers(0),
        lambda: DDP(2)(training()), lambda: DDP(2, 1e9)(training(gradients=())), lambda: Gist("none*")(training()),
        lambda: BlueConnect((4, 2), (1e9,))(training()),
    ],
)  # fmt: skip
def test_wrong_questions_say_so(make):
    with pytest.raises(RollerError, match="expected"):
        make()


def test_a_change_of_steps_is_asked_of_one_rank():
    joint = joined_ranks()
    with pytest.raises(RollerError, match="expected the profile of one rank, got 2 of a job"):
        FusedOptimizer("sgd", prices="factor")(joint)
    assert len(ZeroTime(kind="data")(joint).tasks) == len(joint.tasks)


def joined_ranks():
    """Two ranks that load a batch each."""
    from dataclasses import replace

    one = training(data_us=50.0)
    other = [replace(t, id=t.id + len(one.tasks), lane=t.lane._replace(rank=1)) for t in one.tasks]
    return replace(one, tasks=[*one.tasks, *other])


def test_what_is_removed_waits_for_nothing():
    graph = training(copy_us=500.0)
    waiting = select(graph, lambda t: t.kind == "sync")
    gone = remove(graph, waiting, launches=False)
    assert simulate(gone).start_us[2] < simulate(graph).start_us[2]
