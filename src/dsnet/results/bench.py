"""Benchmarks. Times are in milliseconds."""

from __future__ import annotations

from dataclasses import dataclass, field

from dsnet.results.base import Made, Metric
from dsnet.schema import Measured, Typed
from dsnet.space import WidthPath, path_name


@dataclass(frozen=True)
class Times(Typed):
    """Milliseconds per call. p99 is None in results that were made before it was measured."""

    mean: float
    p50: float
    p95: float
    p99: float | None = None


@dataclass(frozen=True)
class WidthTime(Measured):
    """Time of a path in a runtime.

    Args:
        name: Name of the path at one of several image sizes, such as 80px:3; may be empty.
        ratio: Time relative to the same path built as a static network.
        noise: Time of that static network relative to itself in a second measurement.
    """

    runtime: str
    path: WidthPath
    batch: int
    threads: int
    madds: int
    times: Times
    images_per_second: float
    ratio: float | None = None
    noise: float | None = None
    name: str = ""

    @property
    def words(self) -> str:
        """The path as users write and read it."""
        return self.name or path_name(self.path)


@dataclass(frozen=True)
class StaticTime(Measured):
    """Time of a static network that could be used instead."""

    model: str
    runtime: str
    batch: int
    threads: int
    madds: int
    times: Times


@dataclass(frozen=True)
class SpeedUp(Measured):
    """Measured speed-up of the slimmest path over the widest, and the ratio of their MAdds."""

    runtime: str
    batch: int
    threads: int
    realised: float
    madds: float
    share: float


@dataclass(frozen=True)
class Loaded(Measured):
    """An exported artefact: its size in bytes, the seconds to open it, and the memory that it takes once it has run."""

    artefact: str
    size: int
    seconds: float
    memory: int


@dataclass(frozen=True)
class FileSizes(Measured):
    """Bytes of the dynamic file and of a file of the widest path; seconds and memory to load the dynamic file.

    artefacts: The same for every artefact. Empty in older results.
    """

    dynamic: int
    widest: int
    load_seconds: float
    load_bytes: int
    artefacts: tuple[Loaded, ...] = ()


@dataclass(frozen=True)
class WidthTimes(Measured):
    """Times of paths in several runtimes.

    Args:
        files: What a network takes in the forms that it can be exported in.
        file: What an exported file or bundle takes, if that is what was measured.
    """

    model: str
    image_size: int
    repeats: int
    rows: tuple[WidthTime, ...]
    made: Made
    router: str | None = None
    against: tuple[StaticTime, ...] = ()
    speed_up: tuple[SpeedUp, ...] = ()
    files: FileSizes | None = None
    file: Loaded | None = None


@dataclass(frozen=True)
class RoutedTime(Measured):
    """Time of a dynamic network at one budget.

    Args:
        ideal: Milliseconds of the chosen paths as static networks.
        score: Score on the whole split, if measured.
        madds_split: Average MAdds on the whole split, if measured.
    """

    name: str
    router: str
    targets: str
    runtime: str
    threads: int
    asked: float
    lam: float
    madds: float
    paths: int
    times: Times
    ideal: float
    ratio: float
    score: float | None = None
    madds_split: float | None = None


@dataclass(frozen=True)
class EqualRun(Measured):
    ms: float
    madds: float
    ratio: float


@dataclass(frozen=True)
class EqualScore(Measured):
    """Time and MAdds of every run at a score that all of them reach."""

    score: float
    runs: dict[str, EqualRun]


@dataclass(frozen=True)
class FixedTime(Measured):
    """Time of a fixed width of a run, as a file of its own, with the same images in the same rounds."""

    name: str
    path: WidthPath
    times: Times


@dataclass(frozen=True)
class RoutedTimes(Measured):
    model: str
    images: int
    rounds: int
    rows: tuple[RoutedTime, ...]
    made: Made
    equal: tuple[EqualScore, ...] = ()
    metric: Metric = field(default_factory=lambda: Metric("top-1", ".2%"))  # of the scores
    fixed: tuple[FixedTime, ...] = ()


@dataclass(frozen=True)
class Way(Measured):
    way: str
    times: Times
    ratio: float
    paper: float | None = None


@dataclass(frozen=True)
class Table1(Measured):
    """The paper's Table 1: ways to run a part of the channels."""

    model: str
    image_size: int
    batch: int
    threads: int
    rows: tuple[Way, ...]
    made: Made


@dataclass(frozen=True)
class Setting(Typed):
    """All that a latency depends on.

    Args:
        digest: Digest of the network's weights.
        runtime: What runs the network, with its version.
        cpu: Model of the processor.
    """

    digest: str
    image_size: int
    runtime: str
    threads: int
    cpu: str


@dataclass(frozen=True)
class PathTime(Typed):
    """Time of one path for a single image.

    Args:
        fixed: The path alone: as a file of its own if the run was measured, else pinned in the dynamic file. None if it
            cannot be pinned.
        routed: The path as the router runs it: with the router, and with the slimmest path if that runs first. None if
            the router never takes this path.
        spread: Quantiles of `routed`, at equal distances.
    """

    path: WidthPath
    fixed: Times | None = None
    routed: Times | None = None
    spread: tuple[float, ...] = ()


@dataclass(frozen=True)
class Latency(Typed):
    """Milliseconds of the paths of a network for single images, in one setting."""

    setting: Setting
    model: str
    rows: tuple[PathTime, ...]
    repeats: int
    made: Made


@dataclass(frozen=True)
class DeployedTime(Measured):
    """One way to deploy a network: a fixed path, or the dynamic network at a budget.

    Args:
        path: The fixed path; None for the dynamic network.
        name: Name of the budget, such as M, or of a fixed path at one of several image sizes; may be empty.
        asked: The budget in MAdds; None for a fixed path.
        madds: Average MAdds, and `score` the score, of the evaluation, if there is one.
        computed: Whether the times were computed from shares of paths, because there were no images to measure with.
    """

    path: WidthPath | None
    madds: float
    times: Times
    name: str = ""
    asked: float | None = None
    score: float | None = None
    computed: bool = False


@dataclass(frozen=True)
class DeployedTimes(Measured):
    """Accuracy and milliseconds of every fixed path and of the dynamic network at the budgets of the evaluation.

    images: number of test images with which the dynamic network was measured.
    widest: MAdds of the network's widest path, which a file may lack; 0 if an older version measured.
    """

    setting: Setting
    rows: tuple[DeployedTime, ...]
    images: int = 0
    metric: Metric | None = None
    widest: float = 0


@dataclass(frozen=True)
class Bench(Measured):
    command: str
    widths: WidthTimes | None = None
    routed: RoutedTimes | None = None
    table1: Table1 | None = None
    latency: tuple[Latency, ...] = ()
    deployed: tuple[DeployedTimes, ...] = ()
