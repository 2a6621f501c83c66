"""What the routes of a server share: its models, and how they are replaced while it runs."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Any

from dsnet.serve.engine import Engine
from dsnet.serve.limits import Held, Limits, Refusal
from dsnet.serve.model import Model, signature

WATCH = 1.0  # seconds between looks at the files of models
log = logging.getLogger("dsnet.serve")


@dataclass
class State:
    """What the routes share. draining: whether the server is about to end."""

    engine: Engine
    places: dict[str, str]
    token: bytes | None
    runtime: Any = None
    draining: bool = False

    def __post_init__(self) -> None:
        self.held, self.loading = Held(self.engine.limits.held), asyncio.Lock()

    @property
    def limits(self) -> Limits:
        return self.engine.limits

    def model(self, name: str) -> Model:
        if name not in self.engine.models:
            known = ", ".join(self.engine.models)
            raise Refusal(404, f"there is no model {name[:64]!r}; this server has {known}")
        return self.engine.models[name]

    async def reload(self, *, changed: bool = False) -> None:
        """Open the models again, or those whose files have changed. Requests go on; what fails to open stays."""
        async with self.loading:
            for name, place in self.places.items():
                before = self.engine.models[name]
                if changed and await asyncio.to_thread(signature, before.place) in (before.seen, ()):
                    continue
                try:
                    self.engine.models[name] = await asyncio.to_thread(Model, name, place, runtime=self.runtime)
                    log.warning("%s: %s was opened again", name, place)
                except Exception as error:
                    before.seen = await asyncio.to_thread(signature, before.place)
                    log.error("%s: %s cannot be opened, the old one stays: %s", name, place, error)


async def watched(state: State) -> None:
    """Take over files that are replaced. A file counts as complete once it did not change between two looks."""
    last: dict[str, object] = {}
    while True:
        await asyncio.sleep(WATCH)
        try:
            now = {name: await asyncio.to_thread(signature, model.place) for name, model in state.engine.models.items()}
            if now == last:
                await state.reload(changed=True)
            last = dict(now)
        except OSError as error:  # of a file that is just being replaced, or of a network volume
            log.error("the files of the models cannot be looked at, which is tried again: %s", error)
