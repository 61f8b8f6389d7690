"""Load on the example server: random arrivals over loopback, latencies beside single requests, memory, and metrics.

Three models with sizes that vary are served by ``examples/batching_server.py`` in a process of its own. First, one
client sends one request after another, for each model and class of sizes: what a request takes alone. Then client
threads send requests at random times (a Poisson process) at a share of the rate that the single client reached
(``--load 0.2``), with sizes drawn at random; one request in fifty is malformed on purpose. A request's latency counts
from the time it was due, so a client that is late hides nothing. Finally, the metrics of the server are compared with
counts that the clients and a wrapper of the sessions made themselves.

    python -m benchmarks.serving --minutes 30 --strict
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from http.client import HTTPConnection, HTTPException
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from benchmarks.common import JsonOption, Verdict, check_outputs, screen, table, write_json

DENSE = """<ir_version: 8, opset_import: ["": 17]>
dense (float[batch, 256] x) => (float[batch, 64] y) <float[256, 512] v, float[512, 512] w, float[512, 64] u> {
    a = MatMul(x, v)
    b = Relu(a)
    c = MatMul(b, w)
    d = Relu(c)
    y = MatMul(d, u)
}"""
SEQUENCE = """<ir_version: 8, opset_import: ["": 17]>
sequence (float[batch, length, 16] x) => (float[batch, length, 16] y) <float[16, 16] w> {
    t = Transpose<perm = [0, 2, 1]>(x)
    scores = MatMul(x, t)
    shares = Softmax<axis = -1>(scores)
    mixed = MatMul(shares, x)
    m = MatMul(mixed, w)
    y = Add(m, x)
}"""
IMAGE = """<ir_version: 8, opset_import: ["": 17]>
image (float[batch, 3, side, side] x) => (float[batch, 16] y) <float[8, 3, 3, 3] v, float[16, 8, 3, 3] w> {
    a = Conv<pads = [1, 1, 1, 1], strides = [2, 2]>(x, v)
    b = Relu(a)
    c = Conv<pads = [1, 1, 1, 1]>(b, w)
    d = GlobalAveragePool(c)
    y = Flatten(d)
}"""


@dataclass(frozen=True)
class Served:
    """A model, the shape of a sample with ``0`` for the size that varies, and the classes of that size."""

    text: str
    ranges: tuple[Any, ...]
    sample: tuple[int, ...]
    classes: tuple[tuple[int, int], ...]


MODELS = {
    "dense": Served(DENSE, (("batch", 1, 4), 256), (256,), ((1, 1),)),
    "sequence": Served(SEQUENCE, (("batch", 1, 4), ("length", 1, 128), 16), (0, 16), ((1, 16), (17, 64), (65, 128))),
    "image": Served(IMAGE, (("batch", 1, 4), 3, ("side", 16, 48), ("side", 16, 48)), (3, 0, 0), ((16, 32), (33, 48))),
}
#: Number of sizes of each class that are drawn from, share of malformed requests, and the limits.
SIZES, MALFORMED, MOST_RATIO, LEAST_CALLS, LEAST_SAMPLES = 6, 0.02, 3.0, 10_000, 200


# --- the server ---------------------------------------------------------------------------------------------------


class Counted:
    """A session whose calls are counted a second time, by a lock and by the shapes of the arrays."""

    def __init__(self, session: Any) -> None:
        self.session, self.metrics = session, session.metrics
        self.inputs, self.outputs, self.ranges = session.inputs, session.outputs, session.ranges
        self.lock, self.counts = threading.Lock(), Counter[str]()

    def run(self, feeds: Mapping[str, np.ndarray]) -> Any:
        """Run the session."""
        try:
            made = self.session.run(feeds)
        except Exception:
            with self.lock:
                self.counts["failed"] += 1
            raise
        with self.lock:
            self.counts["succeeded"] += 1
            self.counts["rows"] += len(feeds["x"])
        return made


def serve(pipe: Connection) -> None:
    """Compile the models, serve them on a free port, and send it; then answer with the counts until told to end."""
    import onnx
    import uvicorn

    import roller
    from examples.batching_server import make_app

    sessions = {}
    for name, served in MODELS.items():
        model, rng = onnx.parser.parse_model(served.text), np.random.default_rng(0)
        for value in model.graph.value_info:
            shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
            array = rng.standard_normal(shape).astype("float32") / np.sqrt(np.prod(shape[:-1]))
            model.graph.initializer.append(onnx.numpy_helper.from_array(array.astype("float32"), value.name))
        del model.graph.value_info[:]
        made = roller.compile_model(model, shapes={"x": served.ranges}, threads=1, deterministic=True)
        sessions[name] = Counted(made)
    app, limits = make_app(sessions, most=4), {"timeout_keep_alive": 600, "timeout_graceful_shutdown": 5}
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", ws="none", **limits))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started and thread.is_alive():
        time.sleep(0.01)
    pipe.send(server.servers[0].sockets[0].getsockname()[1])
    while pipe.recv() == "counts":
        pipe.send({name: dict(session.counts) for name, session in sessions.items()})
    server.should_exit = True
    thread.join()


# --- the clients --------------------------------------------------------------------------------------------------


@dataclass
class Client:
    """Sends requests and keeps what it saw: latencies in seconds by model and class, and statuses by model."""

    port: int
    latencies: dict[str, list[float]] = field(default_factory=dict)
    statuses: Counter[tuple[str, int]] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.connection = HTTPConnection("127.0.0.1", self.port, timeout=60)

    def send(self, model: str, class_name: str, body: str, due: float) -> None:
        """Send a request that was due at a time of ``perf_counter``."""
        try:
            self.connection.request("POST", f"/predict/{model}", body)
            answer = self.connection.getresponse()
            answer.read()
        except (OSError, HTTPException):  # counted as status 0
            self.statuses[model, 0] += 1
            self.connection.close()
            return
        self.statuses[model, answer.status] += 1
        if answer.status == 200:
            self.latencies.setdefault(class_name, []).append(time.perf_counter() - due)


def request_bodies(seed: int = 0) -> dict[str, list[tuple[str, str]]]:
    """Return, for each class of sizes, models and bodies of requests to draw from."""
    rng, found = np.random.default_rng(seed), dict[str, list[tuple[str, str]]]()
    for model, served in MODELS.items():
        for low, high in served.classes:
            name = f"{model} {low}..{high}" if 0 in served.sample else model
            sizes = sorted({low, high, *rng.integers(low, high + 1, SIZES - 2).tolist()})
            for size in sizes:
                sample = rng.standard_normal([size if n == 0 else n for n in served.sample]).astype("float32")
                found.setdefault(name, []).append((model, json.dumps({"x": sample.round(2).tolist()})))
    return found


def run_alone(port: int, bodies: Mapping[str, list[tuple[str, str]]], seconds: float) -> Client:
    """Send one request after another, the same time for each class of sizes, after one of every size."""
    client, rng = Client(port), np.random.default_rng(1)
    for name, several in bodies.items():
        for model, body in several:
            client.send(model, name, body, time.perf_counter())
    client.latencies.clear()
    for name, several in bodies.items():
        end = time.perf_counter() + seconds / len(bodies)
        while (now := time.perf_counter()) < end:
            model, body = several[rng.integers(len(several))]
            client.send(model, name, body, now)
    return client


def run_load(
    port: int, bodies: Mapping[str, list[tuple[str, str]]], per_s: float, threads: int, seconds: float
) -> list[Client]:
    """Send requests at random times from several threads; return what each saw."""
    clients, names, start = [Client(port) for _ in range(threads)], list(bodies), time.perf_counter()

    def work(number: int) -> None:
        rng, due = np.random.default_rng(100 + number), start
        while (due := due + rng.exponential(threads / per_s)) < start + seconds:
            name = names[rng.integers(len(names))]
            model, body = bodies[name][rng.integers(len(bodies[name]))]
            if rng.random() < MALFORMED:
                body = json.dumps({"x": [[1.0, 2.0], [3.0, 4.0]]})
            time.sleep(max(0.0, due - time.perf_counter()))
            clients[number].send(model, name, body, due)

    workers = [threading.Thread(target=work, args=(n,)) for n in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return clients


# --- what was found -----------------------------------------------------------------------------------------------


def slope_with_interval(
    calls: Sequence[float], nbytes: Sequence[float], blocks: int = 10
) -> tuple[float, float, float]:
    """Return the slope of memory over calls in bytes per call, and its 95 % confidence interval.

    Neighbouring readings depend on each other, so means of ``blocks`` consecutive readings are fitted: the interval is
    that of ordinary least squares with eight degrees of freedom. It is infinite where there are too few readings.

    Examples
    --------
    >>> slope, low, high = slope_with_interval(range(100), [5.0 + 2.0 * n for n in range(100)])
    >>> round(slope, 6), round(high - low, 6)
    (2.0, 0.0)
    """
    if len(calls) < blocks or min(calls) == max(calls):
        return math.nan, -math.inf, math.inf
    x, y = (np.array([part.mean() for part in np.array_split(np.asarray(v, float), blocks)]) for v in (calls, nbytes))
    spread = float(((x - x.mean()) ** 2).sum())
    slope = float(((x - x.mean()) * (y - y.mean())).sum() / spread)
    left = y - y.mean() - slope * (x - x.mean())
    off = 2.306 * float(np.sqrt((left**2).sum() / (blocks - 2) / spread))  # Student's t, 97.5 %, 8 degrees
    return slope, slope - off, slope + off


def totals(text: str) -> dict[tuple[str, str], float]:
    """Return the sum over all classes of sizes of each metric without buckets, by its name and model."""
    found = Counter[tuple[str, str]]()
    for name, model, value in re.findall(r'^(\w+)\{model="([^"]*)"[^}]*\} (\S+)$', text, re.MULTILINE):
        if not name.endswith("_bucket"):
            found[name, model] += float(value)
    return dict(found)


def differences(
    text: str, counts: Mapping[str, Mapping[str, int]], statuses: Mapping[tuple[str, int], int]
) -> list[str]:
    """Return where the server's metrics, the wrapper's counts and the clients' counts disagree."""
    said, wrong = totals(text), []
    for model, mine in counts.items():
        succeeded, failed = mine.get("succeeded", 0), mine.get("failed", 0)
        for name, meant in (
            ("calls_total", succeeded + failed), ("failures_total", failed), ("call_duration_seconds_count", succeeded),
            ("calls_in_progress", 0),
        ):  # fmt: skip
            found = said.get((f"roller_session_{name}", model), 0.0)
            wrong += [f"{model}: {name} is {found:g}, counted {meant}"] if found != meant else []
        answered = statuses.get((model, 200), 0)
        wrong += [f"{model}: {answered} answers, {mine.get('rows', 0)} rows"] if answered != mine.get("rows", 0) else []
    return wrong


@dataclass(frozen=True)
class ClassResult:
    """Latencies in seconds of one model and class of sizes, alone and under load."""

    name: str
    alone_p50_s: float
    alone_p99_s: float
    loaded_p50_s: float
    loaded_p99_s: float
    alone: int
    loaded: int

    @classmethod
    def of(cls, name: str, alone: Sequence[float], loaded: Sequence[float]) -> ClassResult:
        """Return the percentiles."""
        ends = [float(np.quantile(v, q)) if len(v) else float("nan") for v in (alone, loaded) for q in (0.5, 0.99)]
        return cls(name, *ends, len(alone), len(loaded))

    @property
    def ratio(self) -> float:
        """The 99th percentile under load divided by the one alone."""
        return self.loaded_p99_s / self.alone_p99_s


def judged(
    classes: Sequence[ClassResult], slope: tuple[float, float, float], calls: int, wrong: Sequence[str]
) -> list[Verdict]:
    """Return whether the limits hold."""
    known = [c for c in classes if min(c.alone, c.loaded) >= LEAST_SAMPLES]
    worst = max((c.ratio for c in known), default=None)
    text = f"{slope[0]:.1f} bytes per call (95 %: {slope[1]:.1f} to {slope[2]:.1f})"
    return [
        Verdict("worst p99 under load over p99 alone", f"{MOST_RATIO:g}x", "-" if worst is None else f"{worst:.2f}x",
                None if worst is None else worst <= MOST_RATIO),
        Verdict("memory grows by", "0 within the interval", text, slope[1] <= 0.0 if calls >= LEAST_CALLS else None),
        Verdict("metrics against own counts", "equal", "; ".join(wrong) or "equal", not wrong),
    ]  # fmt: skip


def main(
    minutes: Annotated[float, typer.Option("--minutes", min=0.05, help="Minutes of load.")] = 0.7,
    load: Annotated[float, typer.Option("--load", help="Share of the rate of a client that never waits.")] = 0.2,
    threads: Annotated[int, typer.Option("--threads", min=1, help="Threads that send requests.")] = 8,
    strict: Annotated[bool, typer.Option("--strict", help="Exit 1 where a limit is missed.")] = False,
    json_path: JsonOption = None,
) -> None:
    """Serve three models, send requests, and print latencies, memory and whether the metrics are right."""
    check_outputs(json_path)
    out, bodies = screen(), request_bodies()
    ours, theirs = multiprocessing.Pipe()
    # As the deployment page recommends: each malloc arena that a further thread opens is a step of some MB.
    os.environ.setdefault("MALLOC_ARENA_MAX", "2")
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs,))
    process.start()
    port = ours.recv()
    alone = run_alone(port, bodies, min(60 * minutes / 3, 300.0))
    mean_s = float(np.mean([np.mean(v) for v in alone.latencies.values()]))
    per_s, samples, done = load / mean_s, list[tuple[float, int]](), threading.Event()
    out.print(f"alone: {1e3 * mean_s:.2f} ms per request; load: {per_s:.1f} requests per s for {minutes:g} minutes")

    def watch() -> None:
        reader, pages = HTTPConnection("127.0.0.1", port, timeout=60), os.sysconf("SC_PAGE_SIZE")
        while not done.wait(0.5):
            reader.request("GET", "/metrics")
            calls = by_name(totals(reader.getresponse().read().decode()))["roller_session_calls_total"]
            samples.append((calls, int(Path(f"/proc/{process.pid}/statm").read_text().split()[1]) * pages))

    watcher = threading.Thread(target=watch)
    watcher.start()
    clients = run_load(port, bodies, per_s, threads, 60 * minutes)
    done.set()
    watcher.join()
    last = HTTPConnection("127.0.0.1", port, timeout=60)
    last.request("GET", "/metrics")
    text = last.getresponse().read().decode()
    ours.send("counts")
    counts = ours.recv()
    ours.send("end")
    process.join(30)

    statuses = sum((c.statuses for c in (alone, *clients)), Counter[tuple[str, int]]())
    loaded = {name: [s for c in clients for s in c.latencies.get(name, [])] for name in bodies}
    classes = [ClassResult.of(name, alone.latencies.get(name, []), loaded[name]) for name in bodies]
    second = samples[len(samples) // 2 :]  # the first half warms up
    slope = slope_with_interval([c for c, _ in second], [b for _, b in second])
    wrong = differences(text, counts, statuses)
    out.print(table("Latency in ms, from when a request was due", COLUMNS, map(cells, classes)))
    sent = sum(n for c in clients for n in c.statuses.values())
    answered = by_name({(str(status), model): count for (model, status), count in statuses.items()})
    out.print(f"answers: {', '.join(f'{count:g} of status {status}' for status, count in sorted(answered.items()))}")
    out.print(f"memory: {samples[0][1] / 1e6:.1f} MB at first, {samples[-1][1] / 1e6:.1f} MB at last; {sent} requests")
    new, taken = (by_name(totals(text))[f"roller_session_new_sizes{n}_total"] for n in ("", "_seconds"))
    out.print(f"new sizes: {new:g} preparations, {1e3 * taken / max(new, 1):.1f} ms each")
    verdicts = judged(classes, slope, sent, wrong)
    for v in verdicts:
        out.print(f"{v.name}: {v.value} (limit: {v.limit}): {v.word}", soft_wrap=True)
    write_json(json_path, {"minutes": minutes, "load": load, "per_s": per_s, "classes": [asdict(c) for c in classes],
                           "slope_bytes_per_call": slope, "requests": sent, "wrong": wrong,
                           "memory": samples})  # fmt: skip
    if strict and any(v.holds is False for v in verdicts):
        raise typer.Exit(1)


def by_name(values: Mapping[tuple[str, str], float]) -> Counter[str]:
    """Return the sums of values over all models, by their names."""
    found = Counter[str]()
    for (name, _), value in values.items():
        found[name] += value
    return found


COLUMNS = ("model and sizes", "alone p50", "p99", "loaded p50", "p99", "p99 ratio", "requests")


def cells(c: ClassResult) -> list[str]:
    """Return a row of the table."""
    times = (c.alone_p50_s, c.alone_p99_s, c.loaded_p50_s, c.loaded_p99_s)
    return [c.name, *(f"{1e3 * s:.2f}" for s in times), f"{c.ratio:.2f}", f"{c.alone} + {c.loaded}"]


if __name__ == "__main__":
    typer.run(main)
