"""What the backend makes of an operator: taken, left to PyTorch and why, or taken and different."""

from __future__ import annotations

import contextlib
import functools
import io
import signal
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from benchmarks.torch_audit.samples import Sample, graph_of, samples
from roller.models.onnx.partition_graph import partition_graph
from roller.models.onnx.read_model import read_onnx_graph
from roller.models.torch.backend import REFUSALS, _root_cause_text, roller_backend
from roller.models.torch.call_compiled_graph import array_to_tensor_converter, materialise
from roller.models.torch.export_to_onnx import ExportedGraph, export_graph
from roller.models.torch.first_call_check import CheckedFirstCall
from roller.models.torch.result_difference import describe_difference
from tests.models.session.reference import evaluate_program

#: Samples in one graph, of an operator and dtype, and seconds for them all.
_TOGETHER, _LIMIT_S = 24, 90


@dataclass
class Verdict:
    """What became of the samples of an operator and dtype.

    Parameters
    ----------
    samples, tried
        That the database has, and that were tried.
    taken
        That the backend took and computed.
    left
        Those that it leaves to PyTorch, by reason.
    differs
        Of those it took, which differ from PyTorch, or fail, and how.
    compiled
        What the compiled sample said: ``"agrees"``, or how it differs; empty where none was compiled.
    note
        Why not all were tried.
    """

    samples: int = 0
    tried: int = 0
    taken: int = 0
    left: dict[str, int] = field(default_factory=dict)
    differs: dict[str, str] = field(default_factory=dict)
    compiled: str = ""
    note: str = ""

    def plain(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return asdict(self)


class _TooLongError(Exception):
    """The time of an operator is over."""


def judged(info: Any, dtype: str, *, most: int, compiling: bool) -> Verdict:
    """Return the verdict on an operator and dtype.

    Parameters
    ----------
    info
        Of the database.
    dtype
        Of its tensors.
    most
        Samples to try.
    compiling
        Whether the first sample that is taken is compiled and called, too.
    """
    verdict = Verdict()
    with _quiet(), _registered_once():
        try:
            with _within(_LIMIT_S):
                some, verdict.samples = samples(info, dtype, most)
                left: Counter[str] = Counter()
                for first in range(0, len(some), _TOGETHER):
                    _judge(info.op, some[first : first + _TOGETHER], verdict, left)
        except _TooLongError:
            verdict.note = f"not all samples within {_LIMIT_S} s"
        except Exception as why:  # noqa: BLE001 - a sample that PyTorch itself does not take
            verdict.note = f"{type(why).__name__}: {str(why).strip().partition(chr(10))[0][:120]}"
        verdict.left = dict(left) if verdict.samples else {}
        if compiling and verdict.taken:
            verdict.compiled = _compiled(info.op, some, verdict)
    return verdict


def _judge(function: Any, some: Sequence[Sample], verdict: Verdict, left: Counter[str]) -> None:
    """Try samples in one graph; where it is refused, in smaller ones, so that others do not hide a sample."""
    graph, arguments = graph_of(function, some), [t for s in some for t in s.tensors]
    try:
        exported = export_graph(graph, arguments)
        program = partition_graph(read_onnx_graph(exported.model))
    except _TooLongError:
        raise
    except Exception as why:  # noqa: BLE001 - exporters raise what they like
        if len(some) == 1:
            verdict.tried += 1
            # as the backend has it: any other error is an internal one, for which PyTorch runs the graph, and says so
            internal = "" if isinstance(why, REFUSALS) else "internal error: "
            left[f"{internal}{cut_reason(why)}"] += 1
            return
        if len(some) > 3:
            probes: Counter[str] = Counter()
            for sample in (some[0], some[len(some) // 2], some[-1]):
                _judge(function, [sample], Verdict(), probes)
            if probes.total() == 3 and len(probes) == 1:  # so are those between them, for all we know
                verdict.tried += 3
                left[next(iter(probes))] += 3
                return
        half = len(some) // 2
        _judge(function, some[:half], verdict, left)
        _judge(function, some[half:], verdict, left)
        return
    try:
        found = _evaluated(exported, program, arguments)
    except _TooLongError:
        raise
    except Exception as why:  # noqa: BLE001 - what the backend takes it has to compute: no error is PyTorch's to catch
        if len(some) == 1:
            verdict.tried += 1
            verdict.taken += 1
            verdict.differs[str(some[0].number)] = f"fails: {type(why).__name__}: {str(why)[:100]}"
            return
        for part in (some[: len(some) // 2], some[len(some) // 2 :]):
            _judge(function, part, verdict, left)
        return
    results = iter(found)
    for sample in some:
        verdict.tried += 1
        verdict.taken += 1
        mine = [next(results) for _ in sample.results]
        why_not = _difference(function, sample, mine)
        if why_not:
            verdict.differs[str(sample.number)] = why_not


def _difference(function: Any, sample: Sample, mine: Sequence[Any]) -> str | None:
    graph = graph_of(function, [sample])
    return describe_difference(mine, sample.results, graph.forward, sample.tensors, pointwise=False)


def _evaluated(exported: ExportedGraph, program: Any, arguments: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
    """Return what an exported graph computes, by the definition of its program's kernels."""
    places = dict(zip(exported.names, exported.positions, strict=True))
    tensors = [*arguments, *(h.tensors[h.name] for h in exported.held)]
    feeds = {n: materialise(tensors[places[n]]).numpy() for n in program.inputs}
    with np.errstate(all="ignore"):
        made = list(evaluate_program(program, feeds).values())
    found = []
    for number, dtype in zip(exported.outputs, exported.dtypes, strict=True):
        result = (
            None if number is None else array_to_tensor_converter(made[number].dtype)(np.array(made[number], order="C"))
        )
        found.append(result if result is None or dtype is None else result.to(dtype))
    return found


def _compiled(function: Any, some: Sequence[Sample], verdict: Verdict) -> str:
    """Compile the first sample that is not known to differ, and call it."""
    for sample in some:
        if str(sample.number) in verdict.differs:
            continue
        graph = graph_of(function, [sample])
        options = {"top_k": 1, "deterministic": True, "progress": False, "side_by_side": False}
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            run = roller_backend(graph, sample.tensors, options)
            if not isinstance(run, CheckedFirstCall):
                continue
            run(*[t.clone() for t in sample.tensors])
        words = [str(w.message) for w in told if "runs in PyTorch" in str(w.message)]
        return words[0] if words else "agrees"
    return ""


def cut_reason(why: BaseException) -> str:
    """Return why a graph is left to PyTorch, without what is of one sample only."""
    import re

    text = re.sub(r"'[^']*\d[^']*'", "'...'", _root_cause_text(why))
    text = re.sub(r"\ba\d+_\d+\b|\bnode_\w+", "...", text)
    return f"{text[:140]}" if str(why) else type(why).__name__


@contextlib.contextmanager
def _within(seconds: int) -> Iterator[None]:
    def over(*_: Any) -> None:
        raise _TooLongError

    before = signal.signal(signal.SIGALRM, over)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    nowhere = io.StringIO()
    with warnings.catch_warnings(), contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def _registered_once() -> Iterator[None]:
    """Let the exporter collect operators and their decompositions once, not for every graph."""
    from torch._export import utils
    from torch.export import decomp_utils, exported_program
    from torch.onnx._internal.exporter import _decomp, _registration

    names = "_collect_all_valid_cia_ops", "create_onnx_friendly_decomposition_table"
    collect = functools.partial(_kept, getattr(utils, names[0]))
    with contextlib.ExitStack() as stack:
        for module in (decomp_utils, exported_program):
            stack.enter_context(patch.object(module, names[0], lambda: set(collect())))
        stack.enter_context(patch.object(_decomp, names[1], functools.partial(_table, getattr(_decomp, names[1]))))
        library = functools.partial(_kept, _registration.ONNXRegistry.from_torchlib)
        stack.enter_context(patch.object(_registration.ONNXRegistry, "from_torchlib", library))
        yield


@functools.cache
def _kept(make: Any, **options: Any) -> Any:
    return make(**options)


_tables: list[dict[Any, Any]] = []


def _table(make: Any, registered: Any) -> dict[Any, Any]:
    if not _tables:
        _tables.append(make(registered))
    return dict(_tables[0])


def now() -> float:
    """Return seconds that only grow."""
    return time.monotonic()
