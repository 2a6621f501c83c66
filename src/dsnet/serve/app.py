"""The server as an ASGI application. Any ASGI server runs it; `dsnet serve` runs it with uvicorn."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from importlib.resources import files
from typing import Any, TypeVar

from PIL import Image
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from dsnet.serve import predict, protocol
from dsnet.serve.engine import Engine, Served
from dsnet.serve.limits import Body, Limits, Refusal, check_headers, check_token
from dsnet.serve.model import Model
from dsnet.serve.state import State, watched

T = TypeVar("T")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
SMALL = 10_000  # bytes of JSON that are read at once; more are read on another thread
SQUEEZED = 1024  # bytes below which no response is compressed
LONG = 4096  # answers of classes; more are written on another thread
LONGEST = 600  # characters of an error


def application(
    places: Mapping[str, str],
    *,
    workers: int = 0,
    limits: Limits | None = None,
    token: bytes | None = None,
    watch: bool = False,
    runtime: Any = None,
) -> Starlette:
    """The application for models by name. places: a run folder, an ONNX file or a bundle for each name.

    workers: batches that run at the same time; 0 for one per core. watch: take over files that are replaced.
    """
    for name in places:
        if not NAME.fullmatch(name):
            raise ValueError(
                f"the model name {name!r} is not good for an address; use up to 64 letters, digits, dots, - and _"
            )
    Image.init()  # or the first picture waits for the readers of all formats
    models = {name: Model(name, place, runtime=runtime) for name, place in places.items()}
    state = State(Engine(models, workers=workers, limits=limits), dict(places), token, runtime)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(state.engine.beat())]
        if watch:
            tasks.append(asyncio.create_task(watched(state)))
        yield
        for task in tasks:
            task.cancel()
        state.engine.close()

    def route(path: str, handler: Callable[..., Awaitable[Response]], *methods: str, free: bool = False) -> Route:
        return Route(path, partial(guarded, state, handler, free), methods=list(methods or ("GET",)))

    one = "/v2/models/{model}"
    versioned = f"{one}/versions/{{version}}"
    app = Starlette(
        routes=[
            *(route(f"{place}/infer", infer, "POST") for place in (one, versioned)),
            route("/predict", predicted, "POST"),
            route("/v2/health/live", live, free=True),
            route("/v2/health/ready", ready, free=True),
            route("/v2", about_server),
            *(route(f"{place}/ready", model_ready) for place in (one, versioned)),
            *(route(place, about_model) for place in (one, versioned)),
            route("/", page, free=True),
            route("/models", listed),
            route("/live", figures),
            route("/metrics", metrics),
        ],
        exception_handlers={HTTPException: refused_by_starlette, Exception: failed},  # type: ignore[dict-item]
        lifespan=lifespan,
    )
    app.state.serve = state
    app.router.redirect_slashes = False  # to an address that the client's Host header says
    return app


# Around every request


async def guarded(
    state: State, handler: Callable[[State, Request], Awaitable[Response]], free: bool, request: Request
) -> Response:
    """Answer a request; whatever is wrong with it becomes a JSON error."""
    try:
        check_headers(request, state.limits)
        if not free:
            check_token(request, state.token)
        return await handler(state, request)
    except Refusal as refusal:
        return failure(refusal.status, str(refusal), refusal.headers)
    except ValueError as error:  # of dsnet: its errors name the value, the limit and the remedy
        return failure(400, str(error))
    except ClientDisconnect:
        return failure(499, "the client is gone")


def failure(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    text = message if len(message) <= LONGEST else f"{message[:LONGEST]} ..."
    return as_json({"error": text}, status, headers)


def as_json(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    body = json.dumps(content, allow_nan=False).encode()
    return Response(body, status, dict(headers or {}), media_type="application/json")


async def refused_by_starlette(request: Request, error: HTTPException) -> Response:
    place = f"{request.method} {request.scope['path'][:100]}"
    words = {404: f"there is no {place}", 405: f"{place} is not allowed; the path takes another method"}
    return failure(error.status_code, words.get(error.status_code, str(error.detail)), error.headers)


async def failed(request: Request, error: Exception) -> Response:
    return failure(500, "the server failed; its log has the reason")


async def unless_gone(request: Request, work: Awaitable[T]) -> T:
    """Wait for work, and cancel it if the client closes the connection first."""
    mine = asyncio.current_task()
    assert mine is not None
    gone = asyncio.ensure_future(disconnected(request))
    gone.add_done_callback(cancel := lambda _: mine.cancel())
    try:
        return await work
    except asyncio.CancelledError:
        if not gone.done():
            raise
        mine.uncancel()
        raise ClientDisconnect from None
    finally:
        gone.remove_done_callback(cancel)
        gone.cancel()


async def disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


@contextlib.contextmanager
def counted(state: State, model: Model) -> Any:
    """Count a request by its status. Yields a list for the time of its beginning and for what was served."""
    if state.draining:
        raise Refusal(503, "the server is about to end; ask another one", {"Retry-After": "1", "Connection": "close"})
    state.engine.answering += 1
    told: list[Any] = []
    status = 500
    try:
        state.engine.check_crowd()
        yield told
        status = 200
    except Refusal as refusal:
        status = refusal.status
        raise
    except ValueError:
        status = 400
        raise
    except (ClientDisconnect, asyncio.CancelledError):
        status = 499
        raise
    finally:
        state.engine.answering -= 1
        began, served = (*told, None, None)[:2]
        seconds = 0.0 if began is None else state.engine.clock() - began
        share, paths = (0.0, []) if served is None else (served.share, model.names_of(served.routed))
        state.engine.metrics.answered(model.name, status, seconds, share, paths)


# Open Inference Protocol


async def live(state: State, request: Request) -> Response:
    return as_json({"live": True})


async def ready(state: State, request: Request) -> Response:
    if state.draining:
        return as_json({"ready": False, "error": "the server is about to end"}, 503)
    return as_json({"ready": True})


async def about_server(state: State, request: Request) -> Response:
    return as_json(protocol.server_metadata())


def named(state: State, request: Request) -> Model:
    version = request.path_params.get("version", protocol.VERSION)
    model = state.model(request.path_params["model"])
    if version != protocol.VERSION:
        raise Refusal(404, f"{model.name} has no version {version[:20]!r}; it has {protocol.VERSION}")
    return model


async def model_ready(state: State, request: Request) -> Response:
    model = named(state, request)
    return as_json({"name": model.name, "ready": not state.draining}, 503 if state.draining else 200)


async def about_model(state: State, request: Request) -> Response:
    model = named(state, request)
    return as_json(protocol.model_metadata(model.name, model.manifest))


async def infer(state: State, request: Request) -> Response:
    model, engine = named(state, request), state.engine
    with counted(state, model) as told:
        async with Body(request, state.limits, state.held) as body:
            told.append(began := engine.clock())
            length = request.headers.get(protocol.LENGTH)
            reading = partial(protocol.parse, body, length, model.manifest, state.limits)
            small = len(body) <= SMALL or (length is not None and len(length) < len(str(SMALL)))
            asked = reading() if small else await asyncio.to_thread(reading)
            work = engine.run(model, asked.images, asked.ask, began=began, deadline_ms=asked.deadline_ms)
            served = await unless_gone(request, work)
            told.append(served)
            said, headers = protocol.answer(
                model.name, asked, served.routed, model.manifest, spent(served, began, engine)
            )
            return await squeezed(request, said, headers)


def spent(served: Served, began: float, engine: Engine) -> dict[str, Any]:
    ms = 1e3 * (engine.clock() - began)
    return {"budget": round(served.share, 6), "level": served.level, "ms": round(ms, 3)}


async def squeezed(request: Request, body: bytes, headers: dict[str, str]) -> Response:
    """A response in the coding that the client prefers."""
    wanted = [part.partition(";")[0].strip() for part in request.headers.get("accept-encoding", "").lower().split(",")]
    coding = next((one for one in wanted if one in ("gzip", "deflate")), None)
    if coding is None or len(body) < SQUEEZED:
        return Response(body, headers=headers)
    packer = zlib.compressobj(1, wbits=(16 if coding == "gzip" else 0) + zlib.MAX_WBITS)
    packed = await asyncio.to_thread(lambda: packer.compress(body) + packer.flush())
    return Response(packed, headers={**headers, "Content-Encoding": coding, "Vary": "Accept-Encoding"})


# Pictures, figures and the page


async def predicted(state: State, request: Request) -> Response:
    query = dict(request.query_params)
    model, engine = state.model(query.pop("model", next(iter(state.engine.models)))), state.engine
    with counted(state, model) as told:
        async with Body(request, state.limits, state.held) as body:
            told.append(began := engine.clock())
            kind = request.headers.get("content-type", "")
            reading = partial(predict.read, body, kind, query, model.manifest, state.limits)
            asked = await asyncio.to_thread(reading) if kind.startswith("multipart/") else reading()
            work = engine.run(model, asked.pictures, asked.ask, began=began, deadline_ms=asked.deadline_ms)
            served = await unless_gone(request, work)
            told.append(served)
            telling = partial(predict.answer, model.name, asked, served, model.manifest)
            seconds = engine.clock() - began
            long = model.detects or asked.top * len(asked.pictures) > LONG
            said = await asyncio.to_thread(telling, seconds) if long else telling(seconds)
            return as_json(said)


async def listed(state: State, request: Request) -> Response:
    """The models, for the page: task, classes, and their levels from cheapest to best."""
    return as_json(
        [
            {
                "name": model.name,
                "model": model.manifest.model,
                "task": model.manifest.task,
                "classes": model.manifest.num_classes,
                "image_size": model.manifest.image_size,
                "paths": [list(path) for path in model.manifest.uniform],
                "levels": [
                    {"name": level.name, "budget": round(level.share, 6), "ms": round(level.ms, 4)}
                    for level in model.levels
                ],
            }
            for model in state.engine.models.values()
        ]
    )


async def figures(state: State, request: Request) -> Response:
    return as_json(state.engine.metrics.live(state.engine.workers))


async def metrics(state: State, request: Request) -> Response:
    return Response(state.engine.metrics.text(), media_type="text/plain; version=0.0.4")


async def page(state: State, request: Request) -> Response:
    return Response(PAGE, media_type="text/html", headers=PAGE_HEADERS)


PAGE = files("dsnet.serve").joinpath("page.html").read_bytes()
PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src blob: data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}
