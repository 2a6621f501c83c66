"""dsnet serve: answer requests over HTTP, at narrower widths before any is refused."""

from __future__ import annotations

import logging
import warnings
from argparse import Namespace
from pathlib import Path

from dsnet.cli.arguments import Parser
from dsnet.errors import NotInstalledError, must

EXTRA = ("starlette", "uvicorn", "httptools", "prometheus_client", "python_multipart")


def add_arguments(parser: Parser) -> None:
    parser.add(
        "models",
        "Run folders, ONNX files or bundles that dsnet wrote; name=PLACE gives a model another name.",
        nargs="+",
        metavar="MODEL",
    )
    parser.add("--host", "Address to listen on; 0.0.0.0 is reached from other machines.", default="127.0.0.1")
    parser.add("--port", "Port to listen on; 0 takes any that is free (default: 8000).", type=int)
    parser.add("--workers", "Batches that run at the same time (default: one per core).", type=int)
    parser.add(
        "--deadline",
        "Milliseconds within which a request that names no deadline is answered.",
        type=float,
        default=250.0,
    )
    parser.add("--token_file", "File with a token that requests must send as Authorization: Bearer.", metavar="FILE")
    parser.add("--watch", "Take over models whose files are replaced (SIGHUP does so at once).", action="store_true")
    parser.add("--grace", "Seconds to finish what is in flight after SIGTERM.", type=float, default=10.0)
    parser.add("--max_body", "Largest body of a request, in megabytes.", type=int, default=64)
    parser.add("--max_pixels", "Largest picture, in millions of pixels.", type=int, default=50)
    parser.add("--max_images", "Most images in a request.", type=int, default=64)
    parser.add("--max_connections", "Most open connections.", type=int, default=1024)
    parser.add("--runtime")


def run(args: Namespace) -> int:
    places = named(args.models)
    workers, port = args.workers or 0, 8000 if args.port is None else args.port
    must("--workers", args.workers, args.workers is None or 1 <= args.workers <= 1024, "lie in 1 to 1024")
    must("--port", port, 0 <= port < 65536, "lie in 0 to 65535")
    must("--grace", args.grace, 0 <= args.grace <= 3600, "lie in 0 to 3600 seconds")
    try:
        from dsnet.serve.app import application
        from dsnet.serve.limits import MEGA, Limits, read_token
        from dsnet.serve.server import address_of, bound, serve, server_of
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in EXTRA:
            raise
        raise NotInstalledError(f"dsnet serve needs {error.name}; run: pip install 'dsnet[serve]'") from error
    limits = Limits(
        body=args.max_body * MEGA,
        held=max(Limits.held, 2 * args.max_body * MEGA),
        pixels=args.max_pixels * 1_000_000,
        images=args.max_images,
        connections=args.max_connections,
        deadline_ms=args.deadline,
    )
    for name in ("PIL", "python_multipart"):  # what they find wrong is told to the client
        logging.getLogger(name).setLevel(logging.CRITICAL)
        warnings.filterwarnings("ignore", module=name)
    token = None if args.token_file is None else read_token(args.token_file)
    listener = bound(args.host, port)  # before the models are opened, which takes longer
    app = application(places, workers=workers, limits=limits, token=token, watch=args.watch, runtime=args.runtime)

    def told() -> None:
        address = address_of(listener)
        for model in app.state.serve.engine.models.values():
            first, last = model.levels[0], model.levels[-1]
            print(f"{model.name}: {model.place}, {first.ms:.3g} ms ({first.name}) to {last.ms:.3g} ms ({last.name})")
        secret = " -H 'Authorization: Bearer TOKEN'" if token is not None else ""
        example = f"curl{secret} --data-binary @photo.jpg '{address}/predict?budget=0.5'"
        print(f"{address} is ready; try: {example}", flush=True)

    serve(server_of(app, grace=args.grace, on_start=told), listener)
    return 0


def named(words: list[str]) -> dict[str, str]:
    """The places of models by name. The name is that of the file or folder, unless it is given."""
    places: dict[str, str] = {}
    for word in words:
        name, equals, place = word.partition("=")
        if not equals or Path(word).exists():
            place, name = word, Path(word).resolve().stem
        if name in places:
            raise ValueError(
                f"two models are called {name}: {places[name]} and {place}; name one of them, as other={place}"
            )
        places[name] = place
    return places
