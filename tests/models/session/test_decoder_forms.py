"""Small decoders of other forms: where caches lie, what is computed from lengths, and what is refused or warned of."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from roller.errors import ModelError, RollerWarning
from roller.models.compile_decoder import compile_decoder

CAPACITY = 16
KEYS, VALUES = "float[1, 2, P, 8] past_key", "float[1, 2, P, 8] past_value"
JOINED = "float[1, 2, Q, 8] pk, float[1, 2, Q, 8] pv"
JOIN = """pk = Concat<axis=2>(past_key, new)
    pv = Concat<axis=2>(past_value, new)
    columns = Transpose<perm=[0, 1, 3, 2]>(pk)"""
ATTEND = """scores = MatMul(new, columns)
    shares = Softmax<axis=-1>(scores)
    attended = MatMul(shares, pv)"""


def model_of(body, inputs=f"{KEYS}, {VALUES}", outputs=JOINED, extra=""):
    """Return a decoder of two heads; ``body`` computes ``attended`` from ``new``."""
    text = f"""<ir_version: 9, opset_import: ["": 18]>
    small (int64[1, sequence_length] ids, {inputs}) => (float[1, sequence_length, 16] logits, {outputs})
    <int64[4] heads = {{1, 1, 2, 8}}, int64[3] rows = {{0, 1, 16}}{extra}> {{
        x = Gather(table, ids)
        split = Reshape(x, heads)
        new = Transpose<perm=[0, 2, 1, 3]>(split)
        {body}
        joined = Transpose<perm=[0, 2, 1, 3]>(attended)
        y = Reshape(joined, rows)
        across = Transpose<perm=[1, 0]>(table)
        logits = MatMul(y, across)
    }}"""
    model = onnx.parser.parse_model(text)
    table = np.random.default_rng(0).standard_normal((16, 16)).astype("float32")
    model.graph.initializer.append(numpy_helper.from_array(table, "table"))
    return model


def compiled(model, **options):
    return compile_decoder(model, capacity=CAPACITY, threads=1, deterministic=True, **options)


def race(model, session, caches, shapes=None, more=lambda total: {}):
    """Hold a whole conversation to ONNX Runtime with explicit pasts."""
    runtime = pytest.importorskip("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    known = runtime.InferenceSession(model.SerializeToString(), options)
    names = [o.name for o in known.get_outputs()]
    past = {n: np.zeros((shapes or {}).get(n, (1, 2, 0, 8)), "float32") for n in caches}
    talk, tokens = session.start(), np.random.default_rng(1).integers(0, 16, CAPACITY)
    for total, token in enumerate(tokens, 1):
        feeds = {"ids": np.array([[token]]), **more(total)}
        meant = dict(zip(names, known.run(None, {**feeds, **past}), strict=True))
        for name, found in talk.run(feeds).items():
            assert found.shape == meant[name].shape
            np.testing.assert_allclose(found, meant[name], atol=2e-5)
        past = {n: meant[present] for n, present in caches.items()}
    for name, rows in talk.rows().items():
        np.testing.assert_array_equal(rows, past[name])


BOTH = {"past_key": "pk", "past_value": "pv"}


@pytest.mark.slow
def test_keys_along_the_last_dimension():
    body = f"""newt = Transpose<perm=[0, 1, 3, 2]>(new)
    columns = Concat<axis=3>(past_key, newt)
    pv = Concat<axis=-2>(past_value, new)
    {ATTEND}"""
    model = model_of(body, f"float[1, 2, 8, P] past_key, {VALUES}", "float[1, 2, 8, Q] columns, float[1, 2, Q, 8] pv")
    session = compiled(model)
    assert [(c.past, c.axis) for c in session.caches] == [("past_key", 3), ("past_value", 2)]
    race(model, session, {"past_key": "columns", "past_value": "pv"}, {"past_key": (1, 2, 8, 0)})


@pytest.mark.slow
def test_outputs_of_the_length_of_the_conversation():
    model = model_of(f"{JOIN}\n{ATTEND}", outputs=f"{JOINED}, float[1, 2, 1, Q] shares")
    race(model, compiled(model), BOTH)


@pytest.mark.slow
def test_one_cache_for_keys_and_values():
    body = f"{JOIN}\n{ATTEND}".replace("pv = Concat<axis=2>(past_value, new)", "").replace("pv)", "pk)")
    model = model_of(body, KEYS, "float[1, 2, Q, 8] pk")
    race(model, compiled(model), {"past_key": "pk"})


@pytest.mark.slow
def test_steps_that_copy_the_past_are_warned_of():
    model = model_of(f"{JOIN}\n{ATTEND}".replace("(pk)", "(pk2)").replace("columns =", "pk2 = Tanh(pk)\n columns ="))
    with pytest.warns(RollerWarning, match="1 step of a call copy earlier rows of a cache.*Tanh"):
        session = compiled(model)
    race(model, session, BOTH)


@pytest.mark.slow
def test_factors_of_keys_copy_nothing():
    scaled = f"{JOIN}\n{ATTEND}".replace("MatMul(new, columns)", "MatMul(new, scaled)")
    scaled = scaled.replace("scores =", "scaled = Mul(columns, half)\n scores =")
    model = model_of(scaled, extra=", float[1] half = {0.5}")
    race(model, compiled(model), BOTH)  # a warning is an error here


@pytest.mark.slow
def test_calls_of_library_functions_bind_each_length_anew():
    body = f"""cumulated = CumSum(mask, one)
    real = Cast<to=1>(cumulated)
    largest = ReduceMax<keepdims=1>(real)
    wide = Reshape(largest, single)
    {JOIN.replace("new)", "later)", 1)}
    {ATTEND}"""
    body = body.replace("pk = Concat", "later = Add(new, wide)\n pk = Concat")
    extra = ", int64[1] one = {1}, int64[4] single = {1, 1, 1, 1}"
    model = model_of(body, f"{KEYS}, {VALUES}, int64[1, T] mask", extra=extra)
    with pytest.warns(RollerWarning, match="each new length takes longer in its first call"):
        session = compiled(model, shapes={"mask": (1, "total")})
    race(model, session, BOTH, more=lambda total: {"mask": np.ones((1, total), np.int64)})


def test_joins_of_other_forms_are_refused():
    model = model_of(f"{JOIN}\n{ATTEND}".replace("Concat<axis=2>(past_key, new)", "Concat<axis=2>(new, past_key)"))
    with pytest.raises(ModelError, match="expected an output that joins 'past_key' with new rows"):
        compiled(model)


@pytest.mark.parametrize(("position", "linear"), [("Identity(past)", True), ("Div(past, two)", False)])
def test_positions_follow_the_length_in_a_line(position, linear):
    """At once if a position is a linear function of the number of tokens; no other is tabulated."""
    body = f"""shape = Shape(past_key)
    past = Gather<axis=0>(shape, two)
    position = {position}
    embedding = Gather(table, position)
    apart = Reshape(embedding, heads)
    moved = Transpose<perm=[0, 2, 1, 3]>(apart)
    later = Add(new, moved)
    {JOIN.replace("past_key, new", "past_key, later")}
    {ATTEND}"""
    model = model_of(body, extra=", int64[1] two = {2}")
    if not linear:
        with pytest.raises(ModelError, match="expected 'position' to be a linear function of the number of tokens"):
            compiled(model)
        return
    session = compiled(model)
    assert [v.at(9).tolist() for v in session.lengths.values()] == [[8]]
    race(model, session, BOTH)


def test_a_window_of_tokens_is_refused():
    """Its steps differ between short and long conversations."""
    body = f"{JOIN}\n{ATTEND}".replace("(pk)", "(k4)").replace("(shares, pv)", "(shares, v4)")
    body = body.replace("columns =", "k4 = Slice(pk, low, high, along)\n v4 = Slice(pv, low, high, along)\n columns =")
    extra = ", int64[1] low = {-4}, int64[1] high = {1000}, int64[1] along = {2}"
    with pytest.raises(ModelError, match="expected the same steps for all sizes"):
        compiled(model_of(body, extra=extra))


@pytest.mark.slow
def test_a_decoder_exported_from_pytorch(tmp_path):
    """Positions follow from the past's length, and both operands of the scores are scaled."""
    torch = pytest.importorskip("torch", reason="PyTorch is an optional extra: pip install 'roller[torch]'")
    pytest.importorskip("onnxscript", reason="torch.onnx.export needs onnxscript: pip install 'roller[torch]'")

    class Decoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.places = torch.nn.Embedding(16, 16), torch.nn.Embedding(CAPACITY, 16)
            self.projection = torch.nn.Linear(16, 48)

        def forward(self, ids, past_key, past_value):
            past = past_key.shape[2]
            x = self.tokens(ids) + self.places(torch.arange(past, past + ids.shape[1]))[None]
            query, key, value = (p.view(1, 1, 2, 8).transpose(1, 2) for p in self.projection(x).chunk(3, -1))
            key, value = torch.cat([past_key, key], 2), torch.cat([past_value, value], 2)
            y = torch.nn.functional.scaled_dot_product_attention(query, key, value)
            return y.transpose(1, 2).reshape(1, 1, 16) @ self.tokens.weight.T, key, value

    path = tmp_path / "decoder.onnx"
    past = torch.export.Dim("past", min=1, max=CAPACITY - 1)
    rows = torch.zeros(1, 2, 5, 8)
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        program = torch.onnx.export(
            Decoder().eval(), (torch.zeros(1, 1, dtype=torch.int64), rows, rows.clone()), dynamo=True, verbose=False,
            input_names=["ids", "past_key", "past_value"], output_names=["logits", "pk", "pv"],
            dynamic_shapes=({}, {2: past}, {2: past}),
        )  # fmt: skip
        program.save(path)
    session = compiled(path)
    assert [tuple(v.at(5)) for v in session.lengths.values()] == [(4,)]
    race(onnx.load(path), session, BOTH)
