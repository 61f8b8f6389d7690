"""Decoders whose caches stay in place: the tokens of ONNX Runtime, conversations apart, refusals."""

from __future__ import annotations

import subprocess
import sys
import threading
from functools import cache

import numpy as np
import onnx
import pytest
from onnx import helper

from benchmarks.decoders.models import FORMS, DecoderSizes, decoder
from roller.errors import LaunchError, ModelError
from roller.models.compile_decoder import compile_decoder
from roller.models.graph.memory_plan import plan_memory
from roller.models.onnx.partition_graph import partition_graph
from roller.models.onnx.read_model import read_onnx_graph
from roller.models.onnx.resident_caches import find_cache_pairs, named_cache_pairs, with_resident_caches
from roller.models.onnx.simplify_graph import fold_graph
from roller.models.session.saved import load_model
from roller_runtime.plan.program_steps import Append, Copy, iterate_kernel_runs
from roller_runtime.session.decoder_session import DecoderSession

CAPACITY = 24
SIZES = DecoderSizes()


def sizes_of(form):
    return DecoderSizes(key_heads=2) if form == "grouped" else SIZES


@cache
def compiled(form, batch=1, block=0):
    model = decoder(sizes_of(form), form, block=block)
    return compile_decoder(model, capacity=CAPACITY, batch=batch, threads=1, deterministic=True)


class Oracle:
    """The same model in ONNX Runtime, with pasts as explicit inputs, one conversation."""

    def __init__(self, form, batch=1, block=0):
        runtime = pytest.importorskip("onnxruntime")
        options = runtime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = 1, 3
        model, sizes = decoder(sizes_of(form), form, block=block), sizes_of(form)
        self.session = runtime.InferenceSession(model.SerializeToString(), options)
        self.names = [o.name for o in self.session.get_outputs()]
        shape = batch, sizes.cache_heads, 0, sizes.head_width
        self.past = {n.replace("present", "past_key_values"): np.zeros(shape, "float32") for n in self.names[1:]}

    def run(self, feeds):
        made = dict(zip(self.names, self.session.run(None, {**feeds, **self.past}), strict=True))
        self.past = {n.replace("present", "past_key_values"): made[n] for n in self.names[1:]}
        return made["logits"]


def feeds_of(form, tokens, total):
    tokens = np.asarray(tokens, np.int64).reshape(-1, 1)
    found = {"input_ids": tokens, "attention_mask": np.ones((len(tokens), total), np.int64)}
    return found if form == "grouped" else {**found, "position_ids": np.full(tokens.shape, total - 1)}


def drawn(logits, seed):
    """Return tokens that vary, unlike the most likely ones of random weights."""
    return (logits[:, -1] + np.random.default_rng(seed).gumbel(size=logits.shape[-1])).argmax(-1)


def graph_of(form, past=5, batch=1):
    sizes = sizes_of(form)
    shapes = {n: f.shape for n, f in feeds_of(form, [0] * batch, past + 1).items()}
    for layer in range(sizes.layers):
        for kind in ("key", "value"):
            shapes[f"past_key_values.{layer}.{kind}"] = batch, sizes.cache_heads, past, sizes.head_width
    return read_onnx_graph(decoder(sizes, form), shapes=shapes)


@pytest.mark.parametrize("form", FORMS)
def test_appends_replace_joins_and_nothing_copies_the_past(form):
    graph = graph_of(form)
    pairs = find_cache_pairs(graph)
    assert [(p.past, p.present, p.axis) for p in pairs] == [
        (f"past_key_values.{n}.{kind}", f"present.{n}.{kind}", 2) for n in range(2) for kind in ("key", "value")
    ]
    program = partition_graph(fold_graph(with_resident_caches(graph, pairs, CAPACITY + 1)))
    assert program.outputs == ("logits",)
    assert sum(isinstance(s, Append) for s in program.steps) == 4
    copies = [s for s in plan_memory(program).program.steps if isinstance(s, Copy) and "cache" in s.target]
    heads, row = sizes_of(form).cache_heads, 4 * SIZES.head_width
    assert [(s.rows, s.row_bytes, s.target_offset_bytes, s.target_pitch_bytes) for s in copies] == (
        [(heads, row, 5 * row, (CAPACITY + 1) * row)] * 4
    )
    # Every kernel that reads a cache reads all of it in place, and none writes rows of earlier tokens.
    readers = [s for s in iterate_kernel_runs(program.steps) if any(n.endswith("/cache") for n in s.inputs)]
    assert len(readers) >= 4
    assert all(program.values[n].elements < heads * 6 * SIZES.head_width for s in readers for n in s.outputs)
    whole = {n for n, v in program.values.items() if CAPACITY + 1 in v.shape}
    assert whole == {n for s in program.steps if isinstance(s, Append) for n in (s.cache, s.target)}


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("form", FORMS)
def test_two_conversations_in_turn_give_the_tokens_of_onnx_runtime(form, batch):
    session = compiled(form, batch)
    talks = [(session.start(), Oracle(form, batch), np.arange(batch) + n) for n in (3, 40)]
    for total in range(1, CAPACITY + 1):
        for n, (talk, oracle, tokens) in enumerate(talks):
            feeds = feeds_of(form, tokens, total)
            found, meant = talk.run(feeds)["logits"], oracle.run(feeds)
            np.testing.assert_allclose(found, meant, atol=3e-5)
            np.testing.assert_array_equal(found.argmax(-1), meant.argmax(-1))
            talks[n] = talk, oracle, drawn(meant, total)
    for talk, oracle, _ in talks:
        assert talk.length == CAPACITY
        for name, rows in talk.rows().items():
            np.testing.assert_allclose(rows, oracle.past[name], atol=1e-5)


def test_tokens_of_onnx_runtime():
    """One form at batch 1: the others are slow tests."""
    session, oracle, tokens = compiled("concat"), Oracle("concat"), np.array([3])
    talk = session.start()
    for total in range(1, CAPACITY + 1):
        feeds = feeds_of("concat", tokens, total)
        found, meant = talk(*feeds.values()), oracle.run(feeds)
        np.testing.assert_allclose(found, meant, atol=3e-5)
        tokens = drawn(meant, total)


@pytest.mark.slow
def test_weights_of_4_bits():
    session, oracle, tokens = compiled("grouped", 1, 32), Oracle("grouped", 1, 32), np.array([3])
    talk = session.start()
    for total in range(1, CAPACITY + 1):
        feeds = feeds_of("grouped", tokens, total)
        found, meant = talk.run(feeds)["logits"], oracle.run(feeds)
        np.testing.assert_allclose(found, meant, atol=1e-4)
        tokens = drawn(meant, total)


def test_room_ends_in_words_and_nothing_changes():
    talk = compiled("concat").start()
    for total in range(1, CAPACITY + 1):
        talk.run(feeds_of("concat", [total], total))
    kept = talk.rows()
    with pytest.raises(LaunchError, match=f"at most {CAPACITY} tokens in a conversation, got {CAPACITY + 1}"):
        talk.run(feeds_of("concat", [1], CAPACITY + 1))
    assert talk.length == CAPACITY
    for name, rows in talk.rows().items():
        np.testing.assert_array_equal(rows, kept[name])


def test_reset_truncate_copy_and_fill():
    session = compiled("concat")
    talk = session.start()
    first = [talk.run(feeds_of("concat", [5 + n], n + 1))["logits"] for n in range(6)]
    other = talk.copy()
    again = session.start()
    again.fill(talk.rows())
    talk.truncate(3)
    assert (talk.length, other.length, again.length) == (3, 6, 6)
    for n in range(3, 6):
        np.testing.assert_array_equal(talk.run(feeds_of("concat", [5 + n], n + 1))["logits"], first[n])
    seventh = [t.run(feeds_of("concat", [50], 7))["logits"] for t in (talk, other, again)]
    np.testing.assert_array_equal(seventh[0], seventh[1])
    np.testing.assert_array_equal(seventh[0], seventh[2])
    talk.reset()
    np.testing.assert_array_equal(talk.run(feeds_of("concat", [5], 1))["logits"], first[0])
    for wrong in (-1, 2, 1.5, None):
        with pytest.raises(LaunchError, match="length: expected from 0 to 1 token"):
            talk.truncate(wrong)
    rows = other.rows()
    name = next(iter(rows))
    for wrong, message in (
        ({}, "expected the caches"),
        ({**rows, name: rows[name][:, :, :2]}, "expected one length"),
        ({**rows, name: rows[name].astype("float64")}, "expected float32"),
        ({n: np.zeros((1, 4, CAPACITY + 1, 16), "float32") for n in rows}, "at most 24"),
    ):
        with pytest.raises(LaunchError, match=message):
            other.fill(wrong)
    assert other.length == 7


def test_rows_that_are_not_filled_are_never_read():
    session = compiled("concat")
    talk, poisoned = session.start(), session.start()
    for array in poisoned._arrays:
        array[...] = np.nan
    for total in range(1, CAPACITY + 1):
        feeds = feeds_of("concat", [7 * total % 97], total)
        np.testing.assert_array_equal(poisoned.run(feeds)["logits"], talk.run(feeds)["logits"])


def test_a_refused_call_leaves_the_conversation_as_it_was():
    talk = compiled("concat").start()
    talk.run(feeds_of("concat", [5], 1))
    for feeds in (
        feeds_of("concat", [5], 3),  # a mask of another length
        {**feeds_of("concat", [5], 2), "input_ids": np.zeros((1, 1), "int32")},
        {"input_ids": np.zeros((1, 1), "int64")},
        {**feeds_of("concat", [5], 2), "past_key_values.0.key": np.zeros((1, 4, 1, 16), "float32")},
    ):
        with pytest.raises(LaunchError):
            talk.run(feeds)
    assert talk.length == 1


def test_threads_run_conversations_at_once_and_one_at_a_time_each():
    session = compiled("concat")
    tokens = np.random.default_rng(0).integers(0, 97, (8, CAPACITY))

    def whole(row):
        talk = session.start()
        return [talk.run(feeds_of("concat", [t], n + 1))["logits"] for n, t in enumerate(row)]

    alone = [whole(row) for row in tokens]
    found: dict[int, list[np.ndarray]] = {}
    threads = [threading.Thread(target=lambda n=n: found.update({n: whole(tokens[n])})) for n in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for n, meant in enumerate(alone):
        np.testing.assert_array_equal(found[n], meant)
    talk = session.start()
    with talk._exclusively(), pytest.raises(LaunchError, match="one call of a conversation at a time"):
        talk.run(feeds_of("concat", [1], 1))


def test_what_a_session_tells():
    session = compiled("concat")
    assert [(t.name, t.shape) for t in session.inputs] == [
        ("input_ids", (1, 1)), ("attention_mask", (1, "total")), ("position_ids", (1, 1)),
    ]  # fmt: skip
    assert [t.name for t in session.outputs] == ["logits"]
    assert session.cache_bytes == 4 * 4 * 25 * 16 * 4
    assert repr(session) == "<DecoderSession decoder: up to 24 tokens, 4 caches>"
    assert repr(session.start()) == "<Conversation decoder: 0 of 24 tokens>"


def test_a_session_counts_the_calls_of_its_conversations():
    session = compiled("concat")
    before = session.metrics()
    for talk in (session.start(), session.start()):
        talk.run(feeds_of("concat", [1], 1))
        with pytest.raises(LaunchError):
            talk.run(feeds_of("concat", [1, 2], 2))
    found = session.metrics()
    assert (found.latency.count - before.latency.count, found.failures - before.failures, found.in_progress) == (
        2,
        2,
        0,
    )
    assert f'roller_session_calls_total{{model="decoder"}} {found.calls}\n' in found.prometheus()


@pytest.mark.parametrize("form", ["concat", "grouped"])
def test_saved_decoders_go_on_without_a_compiler(form, tmp_path):
    session = compiled(form)
    folder = session.save(tmp_path / "saved")
    loaded = load_model(folder)
    assert isinstance(loaded, DecoderSession) and repr(loaded) == repr(session)
    assert loaded.inputs == session.inputs and not loaded.rebinding_reason
    one, other, tokens = session.start(), loaded.start(), np.random.default_rng(0).integers(0, 20, CAPACITY)
    for total, token in enumerate(tokens, 1):
        feeds = feeds_of(form, [token], total)
        np.testing.assert_array_equal(other.run(feeds)["logits"], one.run(feeds)["logits"])
    with pytest.raises(LaunchError):
        other.run(feeds_of(form, [1], CAPACITY + 1))
    again = load_model(loaded.save(tmp_path / "again")).start()
    np.testing.assert_array_equal(
        again.run(feeds_of(form, [7], 1))["logits"], session.start().run(feeds_of(form, [7], 1))["logits"]
    )
    code = f"""
import sys
import numpy as np
import roller
talk = roller.load_model({str(folder)!r}).start()
feeds = {{"input_ids": np.array([[3]]), "attention_mask": np.ones((1, 1), "int64"), "position_ids": np.array([[0]])}}
talk.run({{t.name: feeds[t.name] for t in talk.session.inputs}})
assert "tvm" not in sys.modules and "onnx" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_tables_at_all_lengths_are_those_of_the_plan():
    """The numbers of one frame at every length against tables that are bound anew."""
    from roller_runtime.session.resizable_tables import ResizableFrame, _numbers

    session = compiled("concat")
    choice = session.frames.choose_kernels(CAPACITY)
    resizable = session.frames.tables_for(choice)
    arena = np.zeros(session.range_session.arena_bytes + 64, np.uint8)
    frame = ResizableFrame(resizable, session.range_session.arena_bytes, session.range_session.runner, 8, 1, arena)
    for total in (CAPACITY, *range(1, CAPACITY + 1)):
        frame.resize(total)
        meant = session.frames.bind(choice, total)[1]
        np.testing.assert_array_equal(frame._shapes, meant.shapes)
        whole = _numbers(meant)
        steps = frame._rows.view(np.int64).reshape(len(meant.steps), -1)
        assert {int(x) for x in np.unique(steps[:, 3:9])} <= {int(x) for x in np.unique(whole)} | {0}
        np.testing.assert_array_equal(steps[:, 3:9], meant.steps.view(np.int64).reshape(len(meant.steps), -1)[:, 3:9])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"capacity": 15}, "capacity: expected a number of tokens from 16"),
        ({"capacity": True}, "capacity"),
        ({"capacity": 1 << 30}, "capacity"),
        ({"batch": 0}, "batch"),
        ({"caches": {"past": "present.0.key"}}, "no input 'past'"),
        ({"caches": {"past_key_values.0.key": "present.0.value"}}, "expected 'present.0.value' to be Concat"),
        ({"caches": {"past_key_values.0.key": "present.0.key"}}, "its rows would be lost"),
        ({"caches": 3}, "expected 'auto' or a dict"),
        ({"shapes": {"ids": (1, 1)}}, "no input 'ids'"),
        ({"shapes": 3}, "expected a dict of dimensions"),
        ({"shapes": {"input_ids": "ab"}}, "expected a tuple of dimensions, got 'ab'"),
        ({"shapes": {"input_ids": (1, "later")}}, "'past', 'new' or 'total', got 'later'"),
    ],
)
def test_refusals(arguments, message):
    with pytest.raises(ModelError, match=message):
        compile_decoder(decoder(SIZES), **{"capacity": 16, **arguments})


def renamed(model, old, new):
    for value in (*model.graph.input, *model.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param == old:
                dim.dim_param = new
    return model


def test_symbols_that_say_nothing_are_asked_for():
    model = renamed(decoder(SIZES), "past_sequence_length + sequence_length", "L")
    with pytest.raises(ModelError, match="'attention_mask', whose symbol 'L' is unknown"):
        compile_decoder(model, capacity=16)


def test_models_without_caches_are_refused():
    x, y = (helper.make_tensor_value_info(n, 1, [1, 4]) for n in "xy")
    model = helper.make_model(helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "plain", [x], [y]))
    with pytest.raises(ModelError, match="expected caches"):
        compile_decoder(model, capacity=16)


def test_another_reader_of_a_cache_is_refused():
    """It would see rows of later tokens."""
    graph = graph_of("concat")
    pairs = named_cache_pairs(graph, {"past_key_values.0.key": "present.0.key"})
    from dataclasses import replace

    from roller.models.graph.model_graph import Node

    node = Node("Relu", ("past_key_values.0.key",), ("other",), {}, "other", "", 13)
    values = {**graph.values, "other": replace(graph.values["past_key_values.0.key"], name="other")}
    wrong = replace(graph, nodes=(*graph.nodes, node), values=values, outputs=(*graph.outputs, "other"))
    with pytest.raises(ModelError, match="read by Concat alone, got Relu"):
        with_resident_caches(wrong, pairs, 9)


def test_models_are_valid():
    for form in FORMS:
        onnx.checker.check_model(decoder(sizes_of(form), form))
