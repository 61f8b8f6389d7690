"""The networks that are built for benchmarks: what they compute, that batches agree, where their weights stand."""

import numpy as np
import onnx
import onnxruntime
import pytest
import typer

from benchmarks.models import MODELS, build, random_feeds
from benchmarks.models.nasnet import A_MOBILE
from benchmarks.models.registry import _SIZED

TINY = {
    "bert_base": {"layers": 2, "width": 32, "heads": 4, "inner": 64, "sequence": 8, "vocabulary": 50},
    "deeplab_v3_mobilenet": {"side": 33, "stem": 8, "rows": ((3, 8, 8, True, False, 2), (5, 16, 12, True, True, 2)),
                             "dilated": 1, "last": 16, "pooled": 8, "classes": 5},
    "lstm": {"layers": 2, "steps": 5, "width": 8},
    "mobilenet_v2": {"side": 32, "stem": 8, "stages": ((1, 8, 1, 1), (6, 8, 2, 2)), "head": 16, "classes": 10},
    "mobilenet_v3": {"side": 32, "stem": 8, "rows": ((3, 8, 8, True, False, 1), (5, 16, 12, True, True, 2)),
                     "head": 16, "hidden": 24, "classes": 10},
    "resnet18": {"blocks": (1, 1), "side": 32, "width": 8, "classes": 10},
    "resnet50": {"blocks": (1, 1), "side": 32, "width": 8, "classes": 10},
    "nasnet_a_mobile": {"side": 32, "stem": 8, "filters": 8, "repeats": 1, "classes": 10},
}  # fmt: skip
TINY |= {"bert_large": TINY["bert_base"], "bert_base_decomposed": TINY["bert_base"], "lstm_unrolled": TINY["lstm"]}


def run(path, feeds=None):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return session.run(None, feeds or random_feeds(path))


@pytest.mark.parametrize("name", _SIZED)
def test_outputs_depend_on_inputs(name, tmp_path):
    path = build(name, tmp_path, **TINY[name])
    onnx.checker.check_model(str(path), full_check=True)
    for one, other in zip(run(path), run(path, random_feeds(path, seed=2)), strict=True):
        assert np.isfinite(one).all() and 0.01 < one.std() < 100
        assert np.abs(one - other).max() > 1e-3


def test_a_light_network_gets_random_weights_and_a_batch(tmp_path):
    one, four = build("light_squeezenet", tmp_path), build("light_squeezenet", tmp_path, batch=4)
    feeds = random_feeds(four)
    (shares,) = run(four, feeds)
    assert shares.shape == (4, 1000, 1, 1) and 1e-4 < shares.std() < 0.1
    (first,) = run(one, {k: v[:1] for k, v in feeds.items()})
    np.testing.assert_allclose(shares[:1], first, rtol=1e-3)


def test_both_forms_of_an_lstm_and_of_layer_norms_are_the_same_function(tmp_path):
    for one, other in (("lstm", "lstm_unrolled"), ("bert_base", "bert_base_decomposed")):
        path = build(one, tmp_path, batch=3, **TINY[one])
        expected = run(path)
        for a, b in zip(expected, run(build(other, tmp_path, batch=3, **TINY[one]), random_feeds(path)), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-4)


def test_large_weights_stand_in_a_file_of_their_own(tmp_path):
    path = build("bert_large", tmp_path, **TINY["bert_large"])
    graph = onnx.load(str(path), load_external_data=False).graph
    outside = [t for t in graph.initializer if t.data_location == onnx.TensorProto.EXTERNAL]
    assert {t.name for t in outside} >= {"embeddings.word", "encoder.1.inner.weight"}
    offsets = [int(e.value) for t in outside for e in t.external_data if e.key == "offset"]
    assert all(o % 4096 == 0 for o in offsets) and len(set(offsets)) == len(offsets)
    for a, b in zip(run(path), run(build("bert_base", tmp_path, **TINY["bert_base"])), strict=True):
        np.testing.assert_array_equal(a, b)


def test_nasnet_has_the_published_size(tmp_path):
    graph = onnx.load(str(build("nasnet_a_mobile", tmp_path))).graph
    weights = sum(int(np.prod(t.dims)) for t in graph.initializer)
    assert 4.5e6 < weights < 6e6 and A_MOBILE.filters == 44
    kinds = {n.op_type for n in graph.node}
    assert {"Conv", "AveragePool", "MaxPool", "Concat", "Add", "Pad", "Slice"} <= kinds and len(graph.node) > 500


def test_an_unknown_name_is_refused_with_the_known_ones(tmp_path):
    assert len(MODELS) == 20
    with pytest.raises(typer.BadParameter, match=r"expected one of light_bvlc_alexnet.*got 'bert'"):
        build("bert", tmp_path)
    assert not list(tmp_path.iterdir())
