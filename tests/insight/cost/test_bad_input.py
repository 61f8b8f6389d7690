"""Operators that no row maps, arguments that a row does not foresee, and operators on nothing."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import roller  # noqa: E402
from roller.insight.cost import price_operator  # noqa: E402
from roller.insight.cost.gpu import operator_launches  # noqa: E402
from roller.insight.forecast import forecast  # noqa: E402
from roller.insight.trace.trace import Operator, TensorRecord, Trace  # noqa: E402
from tests.insight.cost.calls import aten, bytes_of, recorded  # noqa: E402

X, W, Y = (TensorRecord((512, 512), (512, 1), "float32", n) for n in range(3))


def test_an_operator_that_is_unknown_is_priced_by_its_bytes_and_named_in_the_report():
    known, unknown = (Operator(n, name, "forward", (X, W), (Y,)) for n, name in enumerate(
        ("aten.mm.default", "mine.magic.default")))  # fmt: skip
    launches, mapped = operator_launches(unknown)
    assert not mapped and bytes_of(launches) == (2 * 512 * 512 * 4, 512 * 512 * 4)
    assert price_operator(unknown, "h100").provenance == "bytes" and price_operator(known, "h100").provenance != "bytes"
    found = forecast(Trace((known, unknown), (), {}, (0, 2)), "h100")
    share = next(s.share for s in found.by_operator() if s.name == "mine.magic.default")
    assert 0 < found.unmapped_share == pytest.approx(share) == found.to_dict()["unmapped_share"]


@pytest.mark.parametrize("arguments", [{"self": {"tensor": 9}}, {"mat2": None}, {"self": 3, "mat2": "two"}])
def test_arguments_that_a_row_does_not_foresee_are_priced_by_bytes(arguments):
    launches, mapped = operator_launches(Operator(0, "aten.mm.default", "forward", (X, W), (Y,), arguments))
    assert not mapped and bytes_of(launches) == (2 * 512 * 512 * 4, 512 * 512 * 4)


@pytest.mark.parametrize("device", ["h100", "v100"])
def test_what_has_no_elements_costs_at_most_a_launch(device):
    def none(*shape):
        return torch.empty(shape, device="meta")

    spec = roller.load_spec(device)
    most = spec.execution.launch_s + 2 * (spec.memory_layers[-1].latency_s or 0.0)
    for call, *args in (
        (aten.mm.default, none(0, 8), none(8, 4)), (aten.mm.default, none(4, 0), none(0, 4)),
        (aten.bmm.default, none(0, 4, 4), none(0, 4, 4)), (aten.add.Tensor, none(0, 3), none(3)),
        (aten.sum.dim_IntList, none(0, 8), [1]), (aten._softmax.default, none(0, 8), -1, False),
        (aten.cat.default, [none(0), none(0)]), (aten.zero_.default, none(0)),
        (aten.index.Tensor, none(8, 4), [torch.empty(0, dtype=torch.int64, device="meta")]),
        (aten.native_layer_norm.default, none(0, 8), [8], none(8), none(8), 1e-5),
        (aten.addmm.default, none(4), none(0, 8), none(8, 4)),
        (aten.convolution.default, none(0, 3, 8, 8), none(4, 3, 3, 3), None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1),
        (aten._foreach_add_.Scalar, [none(0), none(0)], 1.0),
    ):  # fmt: skip
        (operator,), _ = recorded(call, *args)
        found = price_operator(operator, spec)
        assert found.seconds <= most * 1.01 and found.kernels <= 1 and found.provenance != "bytes", operator.name
