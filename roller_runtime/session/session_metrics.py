"""Metrics of sessions as values, and as text for Prometheus.

The text is Prometheus' exposition format 0.0.4 (https://prometheus.io/docs/instrumenting/exposition_formats/).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from roller_runtime.errors import LaunchError, shown
from roller_runtime.session.call_metrics import CallMetrics, LatencyHistogram

#: Labels that the text itself uses, and the form of all labels.
_OWN_LABELS, _LABEL = ("model", "sizes", "reason", "le"), re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")


@dataclass(frozen=True)
class SessionMetrics(CallMetrics):
    """Calls, memory and doubt of a session, counted since it was made or its process was forked.

    ``calls``, ``failures``, ``in_progress`` and ``latency`` count calls of
    :meth:`~roller_runtime.session.session_interface.ModelCalls.run`.

    Parameters
    ----------
    name
        Name of the model.
    by_sizes
        The counts of each class of sizes that was called, by its name such as ``"batch=3..4,length=65..128"``; ``None``
        for a session with fixed sizes. There are at most :data:`~roller_runtime.session.call_metrics.MOST_SIZE_CLASSES`
        classes, which depend on the ranges only. Calls that failed before their sizes were known belong to none.
    new_sizes
        Number of times that a session with dynamic sizes was prepared for new sizes, by a call or by ``at``.
    new_sizes_s
        Total time of these preparations in seconds.
    arenas, arena_bytes
        Number of working memories that exist and their total size in bytes; ``None`` for a GPU.
    doubt
        Reason why other programs may have disturbed the choice of kernels; empty if none is known.
    """

    name: str = "model"
    by_sizes: Mapping[str, CallMetrics] | None = None
    new_sizes: int = 0
    new_sizes_s: float = 0.0
    arenas: int | None = None
    arena_bytes: int | None = None
    doubt: str = ""

    def prometheus(self, labels: Mapping[str, str] | None = None) -> str:
        """Return the metrics as text for Prometheus; see :func:`prometheus_text`."""
        return prometheus_text([self], labels)


def prometheus_text(
    sessions: Mapping[str, SessionMetrics] | Iterable[SessionMetrics], labels: Mapping[str, str] | None = None
) -> str:
    """Return the metrics of several sessions as text for Prometheus, in exposition format 0.0.4.

    Serve it as ``text/plain; version=0.0.4; charset=utf-8``. All counters and the histogram count from the start of the
    process. Durations are in seconds, sizes in bytes:

    - ``roller_session_calls_total``, ``roller_session_failures_total``: finished calls, and those that raised an error;
    - ``roller_session_call_duration_seconds``: histogram of the calls that succeeded, with the bounds
      :attr:`LatencyHistogram.BOUNDS_S <roller_runtime.session.call_metrics.LatencyHistogram>`;
    - ``roller_session_calls_in_progress``;
    - ``roller_session_new_sizes_total``, ``roller_session_new_sizes_seconds_total``: preparations for new sizes, and
      their time;
    - ``roller_session_arenas``, ``roller_session_arena_bytes``: working memories that exist;
    - ``roller_session_doubt_info``: 1, with the ``reason`` of a disturbed choice of kernels.

    Every sample has the label ``model``. Counts of calls of a session with dynamic sizes also have the label ``sizes``,
    a class of sizes, or an empty one for calls that failed before their sizes were known: add the classes up for the
    whole session.

    Parameters
    ----------
    sessions
        Results of ``session.metrics()``, by the value of their label ``model``, or in a sequence: the label is then the
        name of the model.
    labels
        Further labels of all samples.

    Raises
    ------
    LaunchError
        If two sessions have the same name, a value is no result of ``metrics()``, or a label's name is not valid or is
        one of the text's own.

    Examples
    --------
    >>> from roller_runtime.session.call_metrics import LatencyHistogram
    >>> found = SessionMetrics(1, 0, LatencyHistogram.of([0.25]), name="bert")
    >>> [line for line in found.prometheus().splitlines() if "calls_total" in line and line[0] != "#"]
    ['roller_session_calls_total{model="bert"} 2']
    """
    more = dict(labels or {})
    wrong = [n for n in more if not isinstance(n, str) or not _LABEL.fullmatch(n) or n in _OWN_LABELS]
    if wrong:
        raise LaunchError(
            f"labels: expected names of letters, digits and underscores other than {', '.join(_OWN_LABELS)}, got "
            f"{shown(wrong[0])}."
        )
    named = list(sessions.items()) if isinstance(sessions, Mapping) else [(getattr(m, "name", ""), m) for m in sessions]
    others = [m for _, m in named if not isinstance(m, SessionMetrics)]
    if others:
        raise LaunchError(
            f"sessions: expected results of session.metrics(), got {shown(others[0])}. Call metrics() first."
        )
    names = [name for name, _ in named]
    twice = next((n for n in names if names.count(n) > 1), None)
    if twice is not None:
        raise LaunchError(
            f"sessions: expected one of each name, got several of {shown(twice)}. Pass a mapping by name."
        )
    return "".join(_family_lines([({"model": name, **more}, m) for name, m in named]))


_Labelled = tuple[Mapping[str, str], SessionMetrics]


def _family_lines(several: list[_Labelled]) -> Iterator[str]:
    """Return the lines of all metrics; those of one name must follow each other."""
    by_class = [(labels, m) for session in several for labels, m in _split_by_sizes(*session)]
    ranged = [(labels, m) for labels, m in several if m.by_sizes is not None]
    held = [(labels, m) for labels, m in several if m.arenas is not None]

    def simple(
        name: str, kind: str, meaning: str, samples: Iterable[tuple[Mapping[str, str], float | int | None]]
    ) -> Iterator[str]:
        lines = [
            f"{name}{_label_text(labels)} {_number_text(value)}\n" for labels, value in samples if value is not None
        ]
        yield from (_header(name, kind, meaning), *lines) if lines else ()

    def calls(name: str, kind: str, meaning: str, get: Callable[[CallMetrics], float]) -> Iterator[str]:
        return simple(f"roller_session_{name}", kind, meaning, ((labels, get(m)) for labels, m in by_class))

    yield from calls("calls_total", "counter", "Calls that finished, including failures.", lambda m: m.calls)
    yield from calls("failures_total", "counter", "Calls that raised an error.", lambda m: m.failures)
    yield from _histogram_lines("roller_session_call_duration_seconds", by_class)
    yield from calls("calls_in_progress", "gauge", "Calls that are running.", lambda m: m.in_progress)
    for name, kind, meaning, samples in (
        ("new_sizes_total", "counter", "Preparations for new sizes.", ((x, m.new_sizes) for x, m in ranged)),
        ("new_sizes_seconds_total", "counter", "Time of preparations for new sizes.",
         ((x, m.new_sizes_s) for x, m in ranged)),
        ("arenas", "gauge", "Working memories that exist.", ((x, m.arenas) for x, m in held)),
        ("arena_bytes", "gauge", "Size of all working memories.", ((x, m.arena_bytes) for x, m in held)),
        ("doubt_info", "gauge", "Reason why the choice of kernels may have been disturbed.",
         (({**x, "reason": m.doubt}, 1) for x, m in several if m.doubt)),
    ):  # fmt: skip
        yield from simple(f"roller_session_{name}", kind, meaning, samples)


def _split_by_sizes(
    labels: Mapping[str, str], found: SessionMetrics
) -> Iterator[tuple[Mapping[str, str], CallMetrics]]:
    """Return the counts of each class of sizes and of calls of unknown sizes, or of all calls if sizes are fixed."""
    if found.by_sizes is None:
        yield labels, found
        return
    for name, counts in found.by_sizes.items():
        yield {**labels, "sizes": name}, counts
    known = [m.failures for m in found.by_sizes.values()], [m.in_progress for m in found.by_sizes.values()]
    rest = CallMetrics(
        max(0, found.failures - sum(known[0])), max(0, found.in_progress - sum(known[1])), LatencyHistogram.of([])
    )
    yield {**labels, "sizes": ""}, rest


def _histogram_lines(name: str, several: Sequence[tuple[Mapping[str, str], CallMetrics]]) -> Iterator[str]:
    if several:
        yield _header(name, "histogram", "Duration of calls that succeeded.")
    for labels, found in several:
        latency = found.latency
        ends = (*map(_number_text, latency.BOUNDS_S), "+Inf")
        for end, count in zip(ends, accumulate(latency.counts), strict=True):
            yield f"{name}_bucket{_label_text({**labels, 'le': end})} {count}\n"
        yield f"{name}_sum{_label_text(labels)} {_number_text(latency.sum_s)}\n"
        yield f"{name}_count{_label_text(labels)} {latency.count}\n"


def _header(name: str, kind: str, meaning: str) -> str:
    return f"# HELP {name} {meaning}\n# TYPE {name} {kind}\n"


def _number_text(value: float) -> str:
    """Return a number as Go's ``ParseFloat`` reads it."""
    return repr(value)


def _label_text(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{name}="{_escaped(str(value))}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    """Return a label's value as the format spells it, with a question mark for what UTF-8 lacks."""
    known = value.encode("utf-8", "replace").decode()
    return known.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
