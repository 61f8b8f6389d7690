"""Cached results on meta tensors equal those of PyTorch's meta kernels."""

from __future__ import annotations

import itertools
import random

import pytest

torch = pytest.importorskip("torch")

from roller.insight.trace.pytorch.meta_result_cache import MetaResultCache  # noqa: E402

_aten = torch.ops.aten


def _meta(*shape, dtype=torch.float32, like=None):
    made = torch.empty(shape, dtype=dtype, device="meta")
    return made if like is None else made.permute(*like)


def _layout(value):
    if isinstance(value, torch.Tensor):
        storage = value.untyped_storage().nbytes()
        return (value.shape, value.stride(), value.storage_offset(), value.dtype, storage, value.is_meta)
    return [_layout(one) for one in value] if isinstance(value, (list, tuple)) else value


def _calls():
    """Return calls of operators as a step makes them: new results, views, writes, lists, numbers."""
    x, w, b = _meta(4, 6), _meta(6, 5), _meta(5)
    image, kernel = _meta(2, 3, 8, 8), _meta(7, 3, 3, 3)
    calls = [
        (_aten.addmm.default, (b, x, w), {}),
        (_aten.mm.default, (x, w), {}),
        (_aten.add.Tensor, (x, x), {"alpha": 2}),
        (_aten.mul.Tensor, (_meta(3, dtype=torch.int64), 2), {}),
        (_aten.mul.Tensor, (_meta(3, dtype=torch.int64), 2.0), {}),
        (_aten.mul.Tensor, (_meta(3, dtype=torch.int64), True), {}),
        (_aten.sum.dim_IntList, (x, [1], True), {}),
        (_aten.sum.dim_IntList, (x, [1], False), {"dtype": torch.float64}),
        (_aten.view.default, (x, [24]), {}),
        (_aten._unsafe_view.default, (x, [3, 8]), {}),
        (_aten.t.default, (x,), {}),
        (_aten.expand.default, (_meta(1, 6), [4, 6]), {}),
        (_aten.relu_.default, (x,), {}),
        (_aten.clone.default, (_meta(4, 6, like=(1, 0)),), {"memory_format": torch.contiguous_format}),
        (_aten.clone.default, (_meta(4, 6, like=(1, 0)),), {}),
        (_aten.native_layer_norm.default, (x, [6], _meta(6), _meta(6), 1e-5), {}),
        (_aten.native_dropout.default, (x, 0.5, True), {}),
        (_aten.convolution.default, (image, kernel, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), {}),
        (_aten._foreach_add_.Scalar, ([x, w], 1.0), {}),
        (_aten._foreach_mul.Scalar, ([x, w], 2), {}),
        (_aten.split.Tensor, (x, 2), {}),
        (_aten.nonzero_static.default, (x,), {"size": 3}),
        (_aten.topk.default, (x, 2), {}),
        (_aten.squeeze_.dim, (_meta(1, 3), 0), {}),
        (_aten.sum.default, (x,), {}),
        (_aten.log_softmax.int, (x, 1), {}),
        (_aten._log_softmax.default, (x, 1, False), {}),
        (_aten.eq.Scalar, (x, 1.0), {}),
        (_aten.where.self, (_meta(4, 6, dtype=torch.bool), x, x), {}),
        (_aten.empty.memory_format, ([2, 2],), {"device": torch.device("meta")}),
        (_aten.zeros_like.default, (x,), {"pin_memory": False}),
    ]
    return calls


def test_results_are_those_of_the_kernels():
    results = MetaResultCache()
    order = [*range(len(_calls()))] * 3
    random.Random(0).shuffle(order)
    for number in order:
        func, args, kwargs = _calls()[number]
        wanted_args = _calls()[number][1]
        wanted = func(*wanted_args, **kwargs)
        made = results.run(func, args, kwargs)
        assert _layout(made) == _layout(wanted), func
        assert type(made) is type(wanted)
        assert _layout(args) == _layout(wanted_args), func
        for arg, result, other, expected in itertools.zip_longest(
            _flat(args), _flat(made), _flat(wanted_args), _flat(wanted)
        ):
            if arg is not None and result is not None:
                assert (arg is result) == (other is expected), func
    assert results.known > len(_calls()) // 2


def _flat(value):
    if isinstance(value, (list, tuple)):
        return [tensor for one in value for tensor in _flat(one)]
    return [value] if isinstance(value, torch.Tensor) else []


def test_new_results_share_no_memory():
    results, x = MetaResultCache(), _meta(4, 6)
    one, other = (results.run(_aten.relu.default, (x,), {}) for _ in range(2))
    assert one.untyped_storage()._cdata != other.untyped_storage()._cdata != x.untyped_storage()._cdata


def test_views_are_views_each_time():
    results, x = MetaResultCache(), _meta(4, 6)
    for _ in range(2):
        view = results.run(_aten._unsafe_view.default, (x, [24]), {})
        assert view.untyped_storage()._cdata == x.untyped_storage()._cdata


def test_an_output_that_is_an_input_once_is_not_the_input_later():
    results, x, y, z = MetaResultCache(), _meta(4), _meta(4), _meta(4)
    assert results.run(_aten.add.out, (x, x), {"out": x}) is x
    assert results.run(_aten.add.out, (x, y), {"out": z}) is z
    assert results.run(_aten.add.out, (x, y), {"out": x}) is x


def test_numbers_promote_by_their_type():
    results, x = MetaResultCache(), _meta(4, dtype=torch.int32)
    dtypes = [results.run(_aten.mul.Tensor, (x, number), {}).dtype for number in (1, 1.0, True, 1)]
    assert dtypes == [torch.int32, torch.float32, torch.int32, torch.int32]


def test_sparse_results_are_made_each_time():
    results, indices = MetaResultCache(), _meta(1, 3, dtype=torch.int64)
    options = {"dtype": torch.float32, "layout": torch.sparse_coo, "device": torch.device("meta")}
    for _ in range(2):
        args = (1, 1, [10, 4], indices, _meta(3, 4))
        made = results.run(_aten._sparse_coo_tensor_with_dims_and_tensors.default, args, options)
        assert made.layout is torch.sparse_coo
    assert results.known == 0


def test_errors_are_raised_each_time():
    results = MetaResultCache()
    for _ in range(2):
        with pytest.raises(RuntimeError):
            results.run(_aten.mm.default, (_meta(2, 3), _meta(4, 5)), {})


def test_other_modes_see_every_call():
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Seen(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    results, x = MetaResultCache(), _meta(4)
    with Seen():
        for _ in range(3):
            results.run(_aten.relu.default, (x,), {})
    assert len(seen) == 3


def test_layers_of_a_step_are_computed_once(monkeypatch):
    """Twelve equal layers need the kernels of one."""
    from roller.insight.tracing import trace

    runs = []
    run = MetaResultCache.run
    monkeypatch.setattr(MetaResultCache, "run", lambda self, *call: (runs.append(self), run(self, *call))[1])
    traced = trace(
        lambda: torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(12)]), torch.zeros(2, 8), optimizer="sgd"
    )
    assert len(traced.operators) > 100 and runs[-1].known < 30


def test_integers_promote_to_the_default_dtype_of_the_moment():
    results, x = MetaResultCache(), _meta(4, dtype=torch.int64)
    before = torch.get_default_dtype()
    try:
        found = []
        for dtype in (torch.float64, torch.float32):
            torch.set_default_dtype(dtype)
            found.append((results.run(_aten.div.Tensor, (x, 2), {}).dtype, torch.get_default_dtype()))
    finally:
        torch.set_default_dtype(before)
    assert all(made == wanted for made, wanted in found)


class _Operator:
    """An operator of ATen that does what a test says."""

    namespace, tags = "aten", ()

    def __init__(self, call, *, is_mutable=False):
        self.calls, self._call = 0, call
        self._schema = type("Schema", (), {"is_mutable": is_mutable})

    def __call__(self, *args):
        self.calls += 1
        return self._call(*args)


def _larger_storage(x):
    return torch.empty(10, device="meta")[: x.shape[0]]


@pytest.mark.parametrize(
    "call, argument",
    [
        (torch.relu, _meta()),  # a tensor without axes may be a number in disguise
        (torch.relu, torch.empty(3)),  # has values
        (torch.neg, _meta(3, dtype=torch.complex64)),
        (lambda x: x.real, _meta(3, dtype=torch.complex64)),
        (_larger_storage, _meta(3)),
        (lambda x: x, _meta(3)),
        (lambda x: x[1:], _meta(3)),
        (lambda x: torch.complex(x, x), _meta(3)),
        (lambda x: 7, _meta(3)),
        (lambda x: (x.t_(), None)[1], _meta(3, 2)),  # changes the layout of its argument
        (lambda x: _aten._efficientzerotensor.default([3], dtype=torch.float32, device="meta"), _meta(3)),
        (lambda x: torch._neg_view(torch.empty(3, device="meta")), _meta(3)),
    ],
)
def test_results_that_do_not_follow_from_layouts_are_computed_each_time(call, argument):
    results, operator = MetaResultCache(), _Operator(call)
    for _ in range(3):
        results.run(operator, (argument,), {})
    assert operator.calls == 3


def test_operators_that_read_values_are_called_each_time():
    results, operator = MetaResultCache(), _Operator(lambda x: torch.empty(2, device="meta"))
    operator.tags = (torch.Tag.dynamic_output_shape,)
    for _ in range(2):
        results.run(operator, (_meta(3),), {})
    assert operator.calls == 2


def test_an_offset_belongs_to_the_layout():
    results, operator = MetaResultCache(), _Operator(lambda x: torch.empty(4, device="meta"))
    base = _meta(8)
    for part in (base[:4], base[4:], base[4:]):
        results.run(operator, (part,), {})
    assert operator.calls == 2


def test_an_operator_that_writes_two_views_of_one_storage_is_called_each_time():
    operator = _Operator(lambda x, y: x, is_mutable=True)
    results, base = MetaResultCache(), _meta(8)
    for _ in range(2):
        results.run(operator, (base[:4], base[4:]), {})
    assert operator.calls == 2
