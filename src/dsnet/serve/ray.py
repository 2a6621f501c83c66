"""The server on a Ray cluster: the same application on each replica, and as many replicas as the queue needs.

`serve run dsnet.serve.ray:build pets=/models/pets.onnx` starts it from a shell.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ray import serve
from starlette.applications import Starlette

from dsnet.serve.app import application
from dsnet.serve.limits import Limits, read_token

HEALTH = 2.0  # seconds between looks at whether a replica lives


class Replica:
    """A process that serves the models. Ray looks after it."""


def deployment(
    places: Mapping[str, str | Path],
    *,
    replicas: tuple[int, int] = (1, 4),
    cpus: int = 1,
    queue: float = 8.0,
    limits: Limits | None = None,
    token_file: str | Path | None = None,
    watch: bool = False,
    grace: float = 10.0,
) -> serve.Application:
    """The application for `serve.run`.

    Args:
        places: A run folder, an ONNX file or a bundle for each name. Every machine of the cluster has it at this place.
        replicas: Fewest and most replicas.
        cpus: Processors of a replica, which runs as many batches at the same time.
        queue: Requests that a replica has on average, waiting ones included. Replicas are added above it, and removed
            below it.
        limits: The limits of a replica.
        token_file: File with the bearer token, on every machine.
        watch: Take over files that are replaced.
        grace: Seconds that a replica which ends may take to answer what it has.
    """
    limits = limits or Limits()
    found = {name: str(Path(place).resolve()) for name, place in places.items()}
    token = None if token_file is None else str(Path(token_file).resolve())

    def opened() -> Starlette:  # on the replica
        secret = None if token is None else read_token(token)
        return application(found, workers=cpus, limits=limits, token=secret, watch=watch)

    options: dict[str, Any] = {
        "name": "dsnet",
        "ray_actor_options": {"num_cpus": cpus},
        "autoscaling_config": {
            "min_replicas": replicas[0],
            "max_replicas": replicas[1],
            "target_ongoing_requests": queue,
        },
        # Requests wait in the replica, whose scheduler knows their deadlines, and not in Ray's router.
        "max_ongoing_requests": limits.queue,
        "graceful_shutdown_timeout_s": grace,
        "health_check_period_s": HEALTH,
    }
    return serve.deployment(**options)(serve.ingress(opened)(Replica)).bind()


def build(places: dict[str, str]) -> serve.Application:
    """The application for `serve run`, and for the config file of a cluster. places: models by name."""
    return deployment(places)
