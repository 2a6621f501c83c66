"""Windows as users write them: by the paper's names, or by the positions of their first and last width."""

from __future__ import annotations

import re
from collections.abc import Sequence

from dsnet.errors import RoutingError
from dsnet.routers import Router
from dsnet.space import Window

NAMES = ("S", "M", "L")


def trained_windows(router: Router) -> list[Window]:
    """The windows of a router that was trained to choose within windows; none if it chooses among all widths."""
    return router.windows if len(router.windows) > 1 else []


def named_windows(router: Router) -> dict[str, Window]:
    """The paper's three networks: the lowest, the middle and the highest window."""
    windows = trained_windows(router)
    places = (0, (len(windows) - 1) // 2, -1)
    return {name: windows[place] for name, place in zip(NAMES, places, strict=True)} if windows else {}


def name_of_window(window: Window, router: Router) -> str:
    """The paper's name of a window; empty for those in between."""
    return next((name for name, held in named_windows(router).items() if held == window), "")


def read_window(window: str | Sequence[int]) -> str | Window:
    """Check how a window is written, by its name or by two positions; this needs no router."""
    if isinstance(window, str):
        text = window.strip()
        if text.upper() in NAMES:
            return text.upper()
        match = re.fullmatch(r"([0-9]+):([0-9]+)", text)
        ends: Sequence[int] = [int(match[1]), int(match[2])] if match else []
    else:
        ends = list(window)
    if len(ends) != 2 or not 0 <= ends[0] <= ends[1]:
        raise RoutingError(
            f"window {window!r} is not understood; write S, M or L, or the positions of its slimmest and its widest "
            f"width, such as 0:2"
        )
    return ends[0], ends[1]


def parse_window(window: str | Sequence[int], router: Router) -> Window:
    """The window of a router that `read_window` understands. Positions need not be one of the trained windows."""
    known, asked = named_windows(router), read_window(window)
    last = router.windows[-1][1]
    if isinstance(asked, str):
        if asked not in known:
            raise RoutingError(
                f"window {window} is one of several windows, but this router was trained to choose among all widths; "
                f"give positions from 0 to {last}, such as 0:{min(2, last)}"
            )
        return known[asked]
    if asked[1] > last:
        raise RoutingError(
            f"window {asked[0]}:{asked[1]} goes beyond the router's widths, whose positions are 0 to {last}"
        )
    return asked


def window_text(window: Window | None) -> str:
    """A window as `read_window` reads it; empty for the whole range."""
    return "" if window is None else f"{window[0]}:{window[1]}"
