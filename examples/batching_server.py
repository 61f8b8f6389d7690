"""Serve models over HTTP and collect concurrent requests into batches: POST /predict/MODEL, GET /metrics, GET /health.

A request is one sample as JSON, {"input": [...], ...}. The sessions have a range of batch sizes, the first dimension of
every input and output. Needs the extra ``serve``: python -m examples.batching_server bert=models/bert
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Mapping
from typing import Any

import numpy as np
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

import roller


class Batcher:
    """Calls a session with up to ``most`` samples, none of which waits longer than ``wait_s`` for others."""

    def __init__(self, session: Any, most: int = 8, wait_s: float = 0.002, queued: int = 64) -> None:
        batch = {d.shape[0] if d.shape else None for d in (*session.inputs, *session.outputs)}
        if len(batch) > 1 or not batch <= set(getattr(session, "ranges", ())):
            raise ValueError(f"{session.name}: expected one range as first dimension of all arrays, got {batch}. "
                             "Compile it with shapes={'x': (('batch', 1, 8), ...), ...}.")  # fmt: skip
        self.session, self.most, self.wait_s = session, min(most, session.ranges[batch.pop()][1]), wait_s
        self.types = {d.name: d.dtype for d in session.inputs}
        self.queue: asyncio.Queue[tuple[dict[str, np.ndarray], asyncio.Future[Any]]] = asyncio.Queue(queued)

    async def answer(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        """Return the outputs for one sample; raise ``asyncio.QueueFull`` if too many wait."""
        future = asyncio.get_running_loop().create_future()
        self.queue.put_nowait(({n: np.asarray(v, self.types.get(n)) for n, v in sample.items()}, future))
        return {name: row.tolist() for name, row in (await asyncio.shield(future)).items()}

    async def work(self) -> None:
        """Run one batch after another."""
        while True:
            batch, end = [await self.queue.get()], asyncio.get_running_loop().time() + self.wait_s
            with contextlib.suppress(asyncio.TimeoutError):
                while len(batch) < self.most:
                    left_s = end - asyncio.get_running_loop().time() if self.queue.empty() else None
                    batch.append(await asyncio.wait_for(self.queue.get(), left_s))
            groups: dict[Any, list[Any]] = {}  # samples of equal shapes fit into one array
            for sample in batch:
                groups.setdefault(frozenset((n, a.shape) for n, a in sample[0].items()), []).append(sample)
            for group in groups.values():
                await self.call(group)

    async def call(self, group: list[Any]) -> None:
        """Run samples of equal shapes together or, if that fails, one by one: a sample must not fail its neighbours."""
        try:
            feeds = {n: np.stack([arrays[n] for arrays, _ in group]) for n in group[0][0]}
            outputs = await asyncio.to_thread(self.session.run, feeds)
            rows = [{name: array[n] for name, array in outputs.items()} for n in range(len(group))]
            for (_, future), row in zip(group, rows, strict=True):
                future.set_result(row)
        except Exception as error:  # noqa: BLE001 - whatever it is, the client hears of it
            if len(group) == 1:
                group[0][1].set_exception(error)
            for sample in group if len(group) > 1 else ():
                await self.call([sample])


def make_app(sessions: Mapping[str, Any], workers: int = 1, **limits: Any) -> Starlette:
    """Return an application for sessions by name, each of which runs up to ``workers`` batches at a time."""
    batchers = {name: Batcher(session, **limits) for name, session in sessions.items()}
    tasks = list[asyncio.Task[None]]()

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        tasks.extend(asyncio.create_task(b.work()) for b in batchers.values() for _ in range(workers))
        yield  # the end of the event loop cancels the tasks

    async def predict(request: Request) -> Response:
        batcher = batchers.get(request.path_params["model"])
        if batcher is None:
            return JSONResponse({"error": f"expected a model of {list(batchers)}"}, 404)
        try:
            if not isinstance(sample := await request.json(), dict):
                raise ValueError("expected a JSON object of arrays by input")
            return JSONResponse(await batcher.answer(sample))
        except asyncio.QueueFull:
            return JSONResponse({"error": "too many requests wait"}, 503, {"Retry-After": "1"})
        except (ValueError, TypeError, OverflowError, roller.RollerError) as error:
            return JSONResponse({"error": str(error)}, 400)

    async def metrics(request: Request) -> Response:
        text = roller.prometheus_text({name: session.metrics() for name, session in sessions.items()})
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    async def health(request: Request) -> Response:
        ended = any(task.done() for task in tasks)
        return PlainTextResponse("a worker has ended" if ended else "ok", 503 if ended else 200)

    routes = [Route("/predict/{model}", predict, methods=["POST"]), Route("/metrics", metrics)]
    return Starlette(routes=[*routes, Route("/health", health)], lifespan=lifespan)


if __name__ == "__main__":
    if len(sys.argv) < 2 or not all("=" in a for a in sys.argv[1:]):
        sys.exit("usage: python -m examples.batching_server NAME=FOLDER ...")
    loaded = {name: roller.load_model(folder, threads=1) for name, folder in (a.split("=", 1) for a in sys.argv[1:])}
    uvicorn.run(make_app(loaded), timeout_graceful_shutdown=30)
