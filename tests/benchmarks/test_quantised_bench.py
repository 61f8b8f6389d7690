"""The benchmark of models in fewer bits: what the variants hold, and one tiny model measured for real."""

import numpy as np
import onnx
import onnxruntime
import pytest
import typer

from benchmarks.cpu.race import Pace
from benchmarks.models import build, random_feeds
from benchmarks.onnx.child import onnx_session, session_options
from benchmarks.quantised import kernels, ties
from benchmarks.quantised.__main__ import _listed, line
from benchmarks.quantised.measure import Record, measure
from benchmarks.quantised.variants import VARIANTS, variant
from tests.models.onnx.quantised_nets import program_of
from tests.models.session.reference import evaluate_program

TINY = {"blocks": (1,), "side": 16, "width": 8, "classes": 10}
HOLDS = {
    "float32": "Conv", "qdq_u8": "DequantizeLinear", "qdq_s8": "DequantizeLinear", "qdq_u8_tensor": "DequantizeLinear",
    "qlinear_u8": "QLinearConv", "dynamic": "ConvInteger", "float16": "Conv", "float16_inside": "Cast", "4bit": "Conv",
}  # fmt: skip


@pytest.mark.parametrize("kind", VARIANTS)
def test_a_variant_is_close_to_its_model(kind, tmp_path):
    path = build("resnet18", tmp_path, **TINY)
    made = variant(path, kind)
    assert HOLDS[kind] in {n.op_type for n in onnx.load(str(made)).graph.node}
    assert variant(path, kind) == made, "what is there stays"
    (wide,) = onnx_session(path, 1).run(None, random_feeds(path))
    # ONNX Runtime's sums of bytes saturate on processors without dot-product instructions.
    narrow = evaluate_program(program_of(onnx.load(str(made))), random_feeds(made)).popitem()[1]
    assert np.abs(narrow.astype(np.float32) - wide).max() < 0.25 * wide.std()


def test_products_of_a_transformer_read_weights_of_four_bits(tmp_path):
    sizes = {"layers": 1, "width": 32, "heads": 2, "inner": 64, "sequence": 8, "vocabulary": 50}
    made = onnx.load(str(variant(build("bert_base", tmp_path, **sizes), "4bit")))
    assert "MatMulNBits" in {n.op_type for n in made.graph.node}
    assert {p.key for p in made.metadata_props} > {"below:input_ids"}, "feeds need to know how far ids go"


def test_a_failure_is_a_line_with_its_reason(monkeypatch, tmp_path):
    import roller

    def fails(*_, **__):
        raise roller.RollerError("no")

    monkeypatch.setattr(roller, "compile_model", fails)
    monkeypatch.setattr("benchmarks.quantised.measure.build", lambda *_, **__: build("resnet18", tmp_path, **TINY))
    found = measure("resnet18", "qdq_u8", 1, 1, Pace(3, 0.0, 0.0), work=tmp_path)
    assert "FAILED RollerError: no" in line(found)


def test_names_are_known_ones():
    assert _listed("a, b", ("a", "b"), "--models") == ["a", "b"]
    with pytest.raises(typer.BadParameter, match="--variants: expected some of a, got 'c'"):
        _listed("c", ("a",), "--variants")


def test_a_record_says_how_fast_and_how_far_apart():
    speed = dict.fromkeys(("median", "low", "high"), 1.25)
    text = line(Record("m", "m", "qdq_u8", 1, seconds={"roller": 0.001}, speed=speed, apart=0.5, differing=0.015))
    assert "1 ms, 1.250" in text and "(1.50 % of elements)" in text


@pytest.mark.parametrize("make", ties.CASES)
def test_definitions_are_those_of_the_operators(make):
    """What float operators round differently is as good as a tie."""
    case = make(np.random.default_rng(0), 8)
    options = session_options(1)
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    peer = onnxruntime.InferenceSession(case.model.SerializeToString(), options, ["CPUExecutionProvider"])
    (found,) = peer.run(None, case.feeds)
    counted = ties.count(case, "as written", found)
    assert counted.explained and counted.elements == found.size and counted.differing < 3
    assert not ties.count(case, "wrong", found ^ 2).explained


@pytest.mark.slow
def test_kernels_of_bytes_are_equal_to_their_peers_alone():
    pace, rng = Pace(rounds=3, turn_s=0.005, settle_s=0.02), np.random.default_rng(0)
    rows = [kernels.product((5, 33, 20), 1, pace, rng), kernels.convolution((32, 6, 18, 3, 2, 1), 16, 1, pace, rng)]
    assert all(r.equal and r.speed > 0 for r in rows)
