"""The example of a server that batches: over loopback, with a session whose calls the tests hold and fail."""

from __future__ import annotations

import concurrent.futures
import contextlib
import http.client
import json
import threading
import time

import pytest

from roller.errors import LaunchError
from roller_runtime.session.call_metrics import CallMeter
from roller_runtime.session.caller_arrays import TensorDescription
from roller_runtime.session.session_metrics import SessionMetrics

uvicorn = pytest.importorskip("uvicorn")
batching_server = pytest.importorskip("examples.batching_server")


class Doubler:
    """Doubles its input; a call waits for ``go`` and fails for samples of 13."""

    def __init__(self) -> None:
        self.inputs = (TensorDescription("x", ("batch", "length"), "float32"),)
        self.outputs = (TensorDescription("y", ("batch", "length"), "float32"),)
        self.name, self.ranges = "double", {"batch": (1, 8), "length": (1, 16)}
        self.calls: list[tuple[int, ...]] = []
        self.go, self.meter = threading.Event(), CallMeter()
        self.go.set()

    def run(self, feeds):
        return self.meter.measure(self._run, feeds, None, False)

    def _run(self, feeds, out, on_device):
        if set(feeds) != {"x"} or feeds["x"].ndim != 2:
            raise LaunchError("double: expected x of shape (batch, length). Reshape it.")
        self.calls.append(feeds["x"].shape)
        assert self.go.wait(30)
        if (feeds["x"] == 13).any():
            raise RuntimeError("unlucky")
        return {"y": feeds["x"] * 2}

    def metrics(self) -> SessionMetrics:
        counts = self.meter.metrics()
        return SessionMetrics(counts.failures, counts.in_progress, counts.latency, "double")


@contextlib.contextmanager
def serving(sessions, **limits):
    """Yield a function that sends a request to the server and returns status, headers and body."""
    app = batching_server.make_app(sessions, **limits)
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="critical", ws="none", timeout_graceful_shutdown=2))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]

        def send(path, body=None, timeout_s=30):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
            with contextlib.closing(connection):
                data = body if body is None or isinstance(body, str) else json.dumps(body)
                connection.request("GET" if body is None else "POST", path, data)
                answer = connection.getresponse()
                return answer.status, dict(answer.headers), answer.read().decode()

        yield send
    finally:
        server.should_exit = True
        thread.join(30)
    assert not thread.is_alive()


@pytest.fixture
def double() -> Doubler:
    return Doubler()


def until(condition) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


@pytest.fixture
def batchers(monkeypatch) -> list[object]:
    """The batchers of the servers that a test starts."""
    made: list[object] = []

    class Recorded(batching_server.Batcher):
        def __init__(self, *arguments, **options) -> None:
            super().__init__(*arguments, **options)
            made.append(self)

    monkeypatch.setattr(batching_server, "Batcher", Recorded)
    return made


def test_concurrent_requests_share_calls_and_each_gets_its_own_answer(double, batchers):
    with serving({"double": double}, most=4, wait_s=0.5) as send, concurrent.futures.ThreadPoolExecutor(16) as pool:
        double.go.clear()
        first = pool.submit(send, "/predict/double", {"x": [0.0, 0.5]})
        until(lambda: double.calls)
        others = [pool.submit(send, "/predict/double", {"x": [float(n)] * (2 + n % 2)}) for n in range(1, 9)]
        until(lambda: batchers[0].queue.qsize() == len(others))
        double.go.set()
        assert json.loads(first.result()[2]) == {"y": [0.0, 1.0]}
        for n, made in enumerate(others, 1):
            assert made.result()[0] == 200 and json.loads(made.result()[2]) == {"y": [2.0 * n] * (2 + n % 2)}
        assert max(batch for batch, _ in double.calls) <= 4 and len(double.calls) < 9
        assert sum(batch for batch, _ in double.calls) == 9


def test_a_sample_that_fails_does_not_fail_its_neighbours(double):
    with serving({"double": double}, most=8, wait_s=0.2) as send, concurrent.futures.ThreadPoolExecutor(8) as pool:
        values = [1.0, 2.0, 13.0, 3.0, [4.0], "text", 5.0]
        made = [pool.submit(send, "/predict/double", {"x": [v, v]}) for v in values]
        statuses = [m.result()[0] for m in made]
        assert statuses == [200, 200, 500, 200, 400, 400, 200]
        assert json.loads(made[3].result()[2]) == {"y": [6.0, 6.0]}
        assert send("/health")[::2] == (200, "ok"), "the worker goes on"
        assert send("/predict/double", {"x": [7.0]})[0] == 200


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ("{", 400, "Expecting"), ("3", 400, "expected a JSON object"), ({"z": [1.0]}, 400, "expected x"),
        ({}, 400, "expected x"), ({"x": [[1.0], [2.0, 3.0]]}, 400, "inhomogeneous"), ({"x": 1.0}, 400, "expected x"),
        ({"x": {"a": 1}}, 400, "float"),
    ],
)  # fmt: skip
def test_a_bad_request_says_why(double, body, status, said):
    with serving({"double": double}) as send:
        found, _, text = send("/predict/double", body)
        assert (found, send("/predict/double", {"x": [1.0]})[0]) == (status, 200)
        assert said in text
        assert send("/predict/other", body)[0] == 404


def test_a_full_queue_is_503_and_passes(double):
    with serving({"double": double}, most=1, queued=3) as send, concurrent.futures.ThreadPoolExecutor(20) as pool:
        double.go.clear()
        held = [pool.submit(send, "/predict/double", {"x": [1.0]})]
        until(lambda: double.calls)
        held += [pool.submit(send, "/predict/double", {"x": [2.0]}) for _ in range(12)]
        until(lambda: sum(h.done() for h in held) == 9)
        refused = [h.result() for h in held if h.done()]
        assert all(status == 503 and headers["retry-after"] == "1" for status, headers, _ in refused)
        double.go.set()
        assert sorted(h.result()[0] for h in held) == [200] * 4 + [503] * 9
        assert send("/predict/double", {"x": [1.0]})[0] == 200


def test_batches_end_with_the_range(double):
    double.ranges["batch"] = (1, 2)
    with serving({"double": double}, most=8, wait_s=0.2) as send, concurrent.futures.ThreadPoolExecutor(5) as pool:
        made = [pool.submit(send, "/predict/double", {"x": [float(n)]}) for n in range(5)]
        assert [m.result()[0] for m in made] == [200] * 5
        assert max(batch for batch, _ in double.calls) == 2


@pytest.mark.parametrize("shape", [(), (None, 3), (8, 3), ("length",), ("batch2", 3)])
def test_a_model_without_a_range_of_batch_sizes_is_refused(double, shape):
    double.outputs = (*double.outputs, TensorDescription("z", shape, "float32"))
    with pytest.raises(ValueError, match="double: expected one range as first dimension of all arrays"):
        batching_server.Batcher(double)


def test_metrics_are_those_of_the_sessions_and_a_dead_worker_is_unhealthy(double, monkeypatch):
    with serving({'dou"ble': double}) as send:
        assert send("/predict/dou%22ble", {"x": [1.0]})[0] == 200
        status, headers, text = send("/metrics")
        assert (status, headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
        assert 'roller_session_calls_total{model="dou\\"ble"} 1\n' in text

    async def dies(self, group):
        raise SystemError("a bug")

    monkeypatch.setattr(batching_server.Batcher, "call", dies)
    with serving({"double": double}) as send:
        assert send("/health")[0] == 200
        with pytest.raises(TimeoutError):
            send("/predict/double", {"x": [1.0]}, timeout_s=0.5)
        until(lambda: send("/health")[0] == 503)
