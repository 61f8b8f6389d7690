"""Large weights inside a model's file are mapped; everything else about the model is as protobuf reads it."""

import mmap

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from roller.errors import ModelError
from roller.models.onnx import mapped_weights, remove_duplicates
from roller.models.onnx.load_model_proto import load_onnx
from roller_runtime.session.packed_constants import _make_readable
from tests.models.onnx.models import model_of

LARGE = (520, 512)


def arrays():
    rng = np.random.default_rng(0)
    return {
        "small": np.arange(6, dtype=np.float32).reshape(2, 3),
        "w": rng.standard_normal(LARGE).astype(np.float32),
        "last": np.arange(1 << 18, dtype=np.int64),
        "empty": np.zeros((0, 3), np.float32),
    }


def model(tensors):
    return model_of([helper.make_node("Identity", ["x"], ["y"])], [("x", 1, [1])], [("y", 1, [1])], tensors)


def is_mapped(array):
    while isinstance(array, np.ndarray):
        array = array.base
    return isinstance(array, mmap.mmap)


def test_large_weights_are_mapped_and_equal_to_what_is_parsed(tmp_path):
    path = tmp_path / "m.onnx"
    made = model([numpy_helper.from_array(a, n) for n, a in arrays().items()])
    onnx.save(made, path)
    loaded, parsed = load_onnx(path), load_onnx(path.read_bytes())
    assert {n for n, a in loaded.initialisers.items() if is_mapped(a)} == {"w", "last"}
    for name, array in arrays().items():
        for found in (loaded.initialisers[name], parsed.initialisers[name]):
            assert found.dtype == array.dtype and np.array_equal(found, array)
    assert loaded.graph == parsed.graph and loaded.opsets == parsed.opsets
    # What a session reads as it is does not depend on the file any more.
    assert not is_mapped(_make_readable(loaded.initialisers["w"])) and _make_readable(arrays()["w"]).shape == LARGE


def test_what_does_not_fit_its_type_is_refused_as_when_it_is_parsed(tmp_path):
    path, wrong = tmp_path / "m.onnx", numpy_helper.from_array(arrays()["w"], "w")
    wrong.dims[0] += 1
    onnx.save(model([wrong]), path)
    with pytest.raises(ModelError, match="tensor 'w'"):
        load_onnx(path)


def test_packed_elements_are_parsed(tmp_path):
    path = tmp_path / "m.onnx"
    packed = TensorProto(name="p", data_type=TensorProto.INT4, dims=[2, 1 << 20], raw_data=bytes(1 << 20))
    onnx.save(model([packed]), path)
    found = load_onnx(path).initialisers["p"]
    assert found.shape == (2, 1 << 20) and not is_mapped(found)


@pytest.mark.parametrize("cut", [1, 1000, 1 << 20])
def test_a_cut_file_is_left_to_protobuf(tmp_path, cut):
    path = tmp_path / "m.onnx"
    data = model([numpy_helper.from_array(arrays()["w"], "w")]).SerializeToString()
    path.write_bytes(data[:-cut])
    assert mapped_weights.read_message_without_weights(path) is None
    with pytest.raises(ModelError, match="damaged"):
        load_onnx(path)


def test_two_graphs_in_one_file_are_merged_by_protobuf(tmp_path):
    path = tmp_path / "m.onnx"
    data = model([numpy_helper.from_array(arrays()["w"], "w")]).SerializeToString()
    more = onnx.ModelProto(graph=onnx.GraphProto(initializer=[numpy_helper.from_array(arrays()["small"], "small")]))
    path.write_bytes(data + more.SerializeToString())
    assert mapped_weights.read_message_without_weights(path) is None
    assert set(load_onnx(path).initialisers) == {"w", "small"}


def test_a_sample_touches_few_pages():
    at = remove_duplicates._sample_elements(np.arange(1 << 22, dtype=np.int64))
    assert len(set((at // 512).tolist())) <= 2 * remove_duplicates._PLACES and at[0] == 0 and at[-1] == (1 << 22) - 1
