"""Limits of what is read from files, so that a small file cannot take all memory or run for ever.

Sizes are compared with them before anything is built or unpacked. Each limit is raised by the environment variable that
its error names: DSNET_MAX_BLOCKS=5000.
"""

from __future__ import annotations

import os

PREFIX = "DSNET_MAX_"
LIMITS: dict[str, int] = {
    "image_size": 8192,  # side in pixels
    "blocks": 1000,  # of a network
    "nodes": 20_000,  # of a converted network
    "channels": 1_000_000,  # of a map or an image
    "classes": 1_000_000,
    "widths": 1000,  # of a choice point
    "paths": 1_000_000,  # of a network
    "growth": 4,  # bytes of tensors for each byte of their file
    "header": 2**24,  # bytes of the list of tensors in a safetensors file
    "json": 2**26,  # bytes
    "yaml": 2**20,  # bytes
    "images": 200_000_000,  # in the shards of a split
    "table": 2**32,  # bytes of the table of shards
    "values": 100_000,  # of a YAML file, aliases written out
}


def limit(name: str) -> int:
    """A limit: what the environment says, or else its default."""
    text = os.environ.get(PREFIX + name.upper(), "")
    if not text:
        return LIMITS[name]
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise ValueError(f"{PREFIX}{name.upper()} is {text[:40]!r}; it must be a whole number of at most 18 digits")
    return int(text)


def allow(name: str, value: int, what: str, *, error: type[ValueError] = ValueError) -> None:
    """Raise an error unless a value is within its limit. what: the beginning of a sentence that the value ends."""
    if value > (most := limit(name)):
        shown = f"{value:,}" if value < 10**18 else "more than 10^18"
        raise error(
            f"{what} {shown}, and the limit is {most:,}; set {PREFIX}{name.upper()} to raise it if you trust the source"
        )
