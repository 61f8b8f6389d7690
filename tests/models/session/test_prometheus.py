"""Metrics as text for Prometheus, read by a parser of the published format that knows nothing of the writer."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roller.errors import LaunchError
from roller.models.graph.memory_plan import plan_memory
from roller.models.session.start_session import start_session
from roller_runtime.session.call_metrics import CallMetrics, LatencyHistogram
from roller_runtime.session.session_metrics import SessionMetrics, prometheus_text
from tests.models.session import programs

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"


def parse_labels(text: str) -> tuple[tuple[tuple[str, str], ...], str]:
    """Return the labels at the start of a text in braces, and the rest."""
    found, at = [], 1
    while text[at] != "}":
        matched = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="').match(text, at)
        assert matched, text[at:]
        at, value = matched.end(), ""
        while text[at] != '"':
            assert text[at] != "\n"
            if text[at] == "\\":
                at += 1
                value += {"\\": "\\", '"': '"', "n": "\n"}[text[at]]
            else:
                value += text[at]
            at += 1
        found.append((matched[1], value))
        at += 1
        if text[at] == ",":
            at += 1
    return tuple(found), text[at + 1 :]


def parse(text: str) -> Iterator[tuple[str, str, tuple[tuple[str, str], ...], float]]:
    """Read the text format 0.0.4, strictly: yield family, name, labels and value of every sample."""
    assert not text or text.endswith("\n"), "the last line ends with a line feed"
    family, kind, seen, series, samples = "", "", set(), set(), 0
    helped = ""
    for line in text.split("\n")[:-1]:
        if line.startswith("# HELP "):
            name, _, meaning = line[len("# HELP ") :].partition(" ")
            assert re.fullmatch(NAME, name) and meaning and name not in seen, "one group of lines for each name"
            assert not family or samples, "no family without samples"
            seen.add(name)
            helped = name
        elif line.startswith("# TYPE "):
            family, kind = line[len("# TYPE ") :].split(" ")
            assert family == helped and kind in ("counter", "gauge", "histogram", "summary", "untyped")
            samples = 0
        else:
            matched = re.match(NAME, line)
            assert matched, line
            name, rest = matched[0], line[matched.end() :]
            labels, rest = parse_labels(rest) if rest.startswith("{") else ((), rest)
            value = re.fullmatch(r" ([-+0-9.eE]+|[-+]?Inf|NaN)", rest)
            assert value, line
            suffixes = ("_bucket", "_sum", "_count") if kind == "histogram" else ("",)
            assert name in [family + s for s in suffixes], "a sample follows the type of its family"
            key = (name, frozenset(labels))
            assert len(dict(labels)) == len(labels) and key not in series, "every series once"
            series.add(key)
            samples += 1
            yield family, name, labels, float(value[1])


def checked(text: str) -> dict[tuple[str, frozenset], float]:
    """Return all samples of a text, after checking its histograms and units."""
    rows = list(parse(text))
    found = {(name, frozenset(labels)): value for _, name, labels, value in rows}
    buckets: dict[frozenset, list[tuple[float, float]]] = {}
    for family, name, labels, value in rows:
        assert family.startswith("roller_session_")
        assert family.endswith(("_total", "_seconds", "_bytes", "_info", "_in_progress", "_arenas"))
        if name.endswith("_bucket"):
            rest = frozenset(p for p in labels if p[0] != "le")
            buckets.setdefault(rest, []).append((float(dict(labels)["le"]), value))
    for rest, several in buckets.items():
        ends, counts = zip(*several, strict=True)
        assert list(ends) == sorted(ends) and ends[-1] == math.inf and list(counts) == sorted(counts)
        assert counts[-1] == found["roller_session_call_duration_seconds_count", rest]
    return found


def metrics(seconds, failures=0, **more) -> SessionMetrics:
    return SessionMetrics(failures, 0, LatencyHistogram.of(seconds), **more)


def test_a_session_says_what_it_counted():
    program = programs.mixed()
    session, fed = start_session(plan_memory(program), programs.kernels(program), cores=1), programs.feeds(program)
    for _ in range(7):
        session.run(fed)
    with pytest.raises(LaunchError):
        session.run({})
    found = session.metrics()
    said = checked(found.prometheus())
    of = frozenset({("model", "test")})
    assert said["roller_session_calls_total", of] == 8
    assert said["roller_session_failures_total", of] == 1
    assert said["roller_session_call_duration_seconds_count", of] == 7
    assert said["roller_session_call_duration_seconds_sum", of] == found.latency.sum_s
    assert said["roller_session_arena_bytes", of] == session.plan.arena_bytes
    assert not [name for name, _ in said if "new_sizes" in name or "doubt" in name]


def test_classes_of_sizes_add_up_to_the_session():
    classes = {"n=1": CallMetrics(1, 0, LatencyHistogram.of([0.1])), "n=2": CallMetrics(0, 2, LatencyHistogram.of([]))}
    total = sum(classes.values(), CallMetrics(4, 1, LatencyHistogram.of([])))
    found = SessionMetrics(
        total.failures, total.in_progress, total.latency, "m", classes, 3, 0.5, 2, 128, "2 of 2 processors busy"
    )
    said = checked(found.prometheus())
    for name, whole in (("calls_total", 6), ("failures_total", 5), ("calls_in_progress", 3)):
        assert sum(v for (n, _), v in said.items() if n == f"roller_session_{name}") == whole
    assert said["roller_session_failures_total", frozenset({("model", "m"), ("sizes", "")})] == 4
    assert said["roller_session_new_sizes_seconds_total", frozenset({("model", "m")})] == 0.5
    assert said["roller_session_doubt_info", frozenset({("model", "m"), ("reason", "2 of 2 processors busy")})] == 1
    before = checked(SessionMetrics(0, 0, LatencyHistogram.of([]), "m", {}, arenas=0, arena_bytes=0).prometheus())
    assert set(before) <= set(said), "series do not change their labels"


ANY = st.text(st.characters())  # lone surrogates too


@given(ANY, ANY, ANY)
def test_any_text_is_a_label(name, sizes, doubt):
    counts = CallMetrics(0, 0, LatencyHistogram.of([1.0]))
    found = metrics([1.0], name=name, by_sizes={f"a{sizes}": counts}, doubt=doubt)
    text = found.prometheus({"zone": sizes})
    text.encode()
    said = checked(text)
    if all(c.isascii() for c in name + sizes):
        labels = frozenset({("model", name), ("sizes", f"a{sizes}"), ("zone", sizes)})
        assert said["roller_session_calls_total", labels] == 1


def test_several_sessions_share_the_lines_of_a_name():
    one, other = metrics([0.1]), metrics([0.2, 0.3], 1)
    said = checked(prometheus_text({'a"b\\c\nd': one, "e": other}, {"worker": "7"}))
    assert said["roller_session_calls_total", frozenset({("model", 'a"b\\c\nd'), ("worker", "7")})] == 1
    assert said["roller_session_calls_total", frozenset({("model", "e"), ("worker", "7")})] == 3
    assert prometheus_text([]) == ""
    with pytest.raises(LaunchError, match=r"expected one of each name, got several of 'model'\. Pass a mapping"):
        prometheus_text([one, other])


@pytest.mark.parametrize("label", ["le", "model", "__name__", "a-b", "", "9", 3, "a\n"])
def test_labels_that_would_break_the_text_are_refused(label):
    with pytest.raises(LaunchError, match="labels: expected names"):
        metrics([]).prometheus({label: "x"})


@pytest.mark.parametrize("wrong", ["text", None, LatencyHistogram.of([])])
def test_values_that_are_no_metrics_are_refused(wrong):
    for sessions in ({"a": wrong}, [wrong]):
        with pytest.raises(
            LaunchError, match=r"sessions: expected results of session.metrics\(\), got .* Call metrics"
        ):
            prometheus_text(sessions)
