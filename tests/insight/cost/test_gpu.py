"""Every row of the mapping beside calls of PyTorch: bytes counted from their tensors, products counted by PyTorch."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from roller.insight.cost.gpu import operator_launches
from roller.insight.cost.gpu.operator_table import TABLE
from roller.insight.cost.gpu.operator_view import OperatorView
from roller.insight.cost.kernel_launch_types import FusedKernel, Kernel, MemoryKernel
from tests.insight.cost.calls import Draw, bytes_of, recorded, touched
from tests.insight.cost.cases_moving import moving_cases
from tests.insight.cost.cases_pointwise import default_reads, pointwise_cases
from tests.insight.cost.cases_products import product_cases

FAMILIES = {"pointwise": pointwise_cases, "products": product_cases, "moving": moving_cases}
#: Rows whose kernels are many, and are counted by their products instead.
COUNTED_BY_PRODUCTS = {"_cudnn_rnn", "_cudnn_rnn_backward"}


def called(case):
    """Return the one operator of a case's row, and the results."""
    operators, results = recorded(case.call, *case.args, given=case.results, **case.kwargs)
    found = [o for o in operators if OperatorView(o).packet.removeprefix("aten.") == case.row]
    assert len(found) == 1, f"{case} dispatches {[o.name for o in operators]}"
    return found[0], results


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("family", FAMILIES)
def test_bytes_are_those_of_the_tensors_that_are_touched(family, seed):
    wrong = []
    for case in FAMILIES[family](Draw(seed)):
        operator, results = called(case)
        launches, mapped = operator_launches(operator)
        reads = default_reads(case) if case.reads is None else case.reads
        writes = case.writes(results) if callable(case.writes) else results if case.writes is None else case.writes
        wanted, found = (touched(reads), touched(writes)), bytes_of(launches)
        close = [pytest.approx(n, rel=0.02, abs=64) for n in wanted]
        if not mapped or list(found) != close:
            wrong.append(f"{case}: mapped {mapped}, expected {wanted}, got {found}")
        kernels = sum(x.count if isinstance(x, Kernel) else x.launches for x in launches if not hasattr(x, "waits")
                      and isinstance(x, (Kernel, MemoryKernel, FusedKernel)))  # fmt: skip
        if case.launches not in (None, kernels):
            wrong.append(f"{case}: expected {case.launches} launches, got {kernels}")
    assert not wrong, "\n".join(wrong)


def test_no_row_is_without_a_case():
    cased = {case.row for family in FAMILIES.values() for case in family(Draw(0))} | COUNTED_BY_PRODUCTS
    rows = {name.removeprefix("aten.") for name in TABLE}
    assert rows == cased
