"""Opens images with labels, wherever they are: in arrays, in files, in shards or in datasets from Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dsnet.data.config import DataConfig
from dsnet.data.folders import open_folder, open_images
from dsnet.data.own import Datasets, Own, Stream, is_grey, is_map, name_of, read_item
from dsnet.data.remote import Store
from dsnet.data.shards import Shards, read_index, read_table
from dsnet.data.sources import Raw, open_source
from dsnet.decoding import ImageError
from dsnet.errors import DataError

SHOWN = 16  # items of a dataset from Python that tell whether it is grey, and its size


def open_raw(config: DataConfig, own: Datasets | None = None) -> Raw:
    """Open the data of a config. own: The datasets of a run on data from Python."""
    if config.kind == "python":
        return open_own(own)
    return open_shards(config) if config.kind == "shards" else open_files(config)


def open_own(own: Datasets | None) -> Raw:
    """Open datasets that were passed from Python."""
    if own is None:
        raise DataError(
            "the data of this run are datasets from Python, which only Python can give: "
            "dsnet.train(data=dsnet.Datasets(...), resume=RUN), dsnet.evaluate(RUN, data=dsnet.Datasets(...))"
        )
    train: Own | Stream = Own(own.train)
    if not is_map(own.train):
        count = own.images or (len(own.train) if hasattr(own.train, "__len__") else None)
        if count is None:
            raise ValueError(f"{name_of(own.train)} has no length; say with images= how many images an epoch has")
        train = Stream(own.train, count)
    if not len(train):
        raise DataError(f"the training dataset, a {name_of(own.train)}, is empty")
    shown = shown_of(own.train, train)
    sides = {side for item, number in shown for side in read_item(own.train, number, item)[0].size}
    channels = 1 if all(is_grey(item[0]) for item, _ in shown) else 3
    others = [Own(part) for part in (own.calibration, own.test) if part is not None]
    labels = [part.labels for part in (train, *others) if isinstance(part, Own)]
    most = max(int(one.max()) for one in labels) + 1
    names = tuple(map(str, own.classes or getattr(own.train, "classes", ()) or range(most)))
    if most > len(names):
        raise DataError(f"a label is {most - 1}, but there are {len(names)} classes; give classes= with all names")
    held, test = (None if part is None else Own(part) for part in (own.calibration, own.test))
    size = sides.pop() if len(sides) == 1 else None
    return Raw(train, test, names, channels, size, calibration=held)


def shown_of(dataset: Any, train: Own | Stream) -> list[tuple[Any, int]]:
    """Some items of a dataset with their numbers, which tell channels and size: of an iterable one the first. Damaged
    images are left out, if there are others."""
    if isinstance(train, Stream):
        return [(next(iter(dataset)), 0)]
    found, damaged = list[tuple[Any, int]](), list[ImageError]()
    for number in range(0, len(train), -(-len(train) // SHOWN)):
        try:
            item = dataset[number]
            train.picture_of(number, item)
            found.append((item, number))
        except ImageError as error:
            damaged.append(error)
        except DataError:
            raise
        except Exception as error:
            damaged.append(train.damaged(number, error))
    if not found:
        raise damaged[0]
    return found


def open_files(config: DataConfig) -> Raw:
    root, labels = (Path(name) if name else None for name in (config.root, config.labels))
    if config.kind == "images":
        assert root is not None  # DataConfig asks for it
        return open_images(root, config.folders)
    return open_folder(root, labels) if config.kind == "folder" else open_source(config.kind, root)


def open_shards(config: DataConfig) -> Raw:
    """Open the splits of a folder of shards. Its index must fit, and its shards must be there."""
    root = config.root or ""
    index, share = read_index(root), config.calibration
    if index.calibration not in (None, share) and share != DataConfig.calibration:
        raise DataError(
            f"data.calibration is {share:g}, but the shards in {root} were written with {index.calibration:g} set "
            f"aside; set --data.calibration {index.calibration:g}, or write them with --calibration {share:g}"
        )
    store = Store(config.store, config.cache_size)
    parts: dict[str, Shards] = {}
    for name, part in index.splits.items():
        table = read_table(root, part, len(index.classes))
        parts[name] = Shards(root, tuple(part.shards), table, len(index.classes), store)
        parts[name].check()
    held = parts.get("calibration")
    return Raw(parts["train"], parts.get("test"), tuple(index.classes), 3, None, calibration=held)
