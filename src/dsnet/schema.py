"""Typed records. Pydantic validates them; this module turns its errors into readable messages.

A record is a frozen dataclass that inherits from `Typed`. `parse` builds one from plain data, `plain` turns one into
data that JSON and YAML can hold. Unknown keys are refused. `flags` lists what a command line needs to know of a record.
"""

from __future__ import annotations

import difflib
import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from pydantic import BeforeValidator, ConfigDict, TypeAdapter, ValidationError

T = TypeVar("T")
WORDS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    dict: "a group of keys",
    NoneType: "null",
}
EXAMPLES: dict[Any, str] = {int: "[0, 2]", float: "[0.5, 1.0]", str: "[a, b]"}
# Keys under the names that other programs give them.
SYNONYMS = {
    **dict.fromkeys(("learning_rate", "learningrate", "rate"), "lr"),
    **dict.fromkeys(("batch", "bs"), "batch_size"),
    **dict.fromkeys(("num_epochs", "epoch"), "epochs"),
    **dict.fromkeys(("decay", "l2", "wd"), "weight_decay"),
    **dict.fromkeys(("img_size", "imgsz", "input_size", "resolution", "size"), "image_size"),
    **dict.fromkeys(("num_workers", "num_threads"), "workers"),
    **dict.fromkeys(("output", "output_dir", "outdir", "save_dir"), "out"),
    **dict.fromkeys(("arch", "architecture", "backbone", "model", "network"), "model.name"),
    **dict.fromkeys(("data", "data_dir", "data_path", "dir", "folder"), "data.root"),
}
METAVARS: dict[Any, str] = {int: "N", float: "X", bool: "true|false"}


class Typed:
    """Base class of the dataclasses that `parse` reads; unknown keys are refused, and so are NaN and infinity."""

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)


class Measured(Typed):
    """A record whose numbers may be NaN or infinite: the accuracy of a class without images is NaN."""

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=True)


def reads(older: Mapping[str, str]) -> BeforeValidator:
    """For the annotation of a field: older names of its values are read as the present ones."""
    return BeforeValidator(lambda value: older.get(value, value) if isinstance(value, str) else value)


adapter: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)  # building an adapter is slow, so each type has one


def parse(
    kind: type[T],
    data: object,
    where: str = "",
    *,
    error: type[ValueError] = ValueError,
    remedy: str = "",
    strict: bool = False,
) -> T:
    """Build a record from plain data. The error is one line that names the place, the value, the limit and the remedy.

    With `strict`, neither booleans nor text are accepted as numbers.
    """
    try:
        check_plain(data)
        if strict:  # through JSON, because strict validation of Python data refuses lists where tuples are declared
            return adapter(kind).validate_json(json.dumps(data, default=str), strict=True)
        return adapter(kind).validate_python(data)
    except ValidationError as invalid:
        words = "; ".join(part for part in (problem(invalid, kind, data), remedy) if part)
        raise error(f"{where}: {words}" if where else words) from None
    except RecursionError:
        raise error(f"{where or kind.__name__} is nested too deeply; restore it from a copy") from None
    except (OverflowError, ValueError) as reason:
        raise error("; ".join(part for part in (f"{where or kind.__name__}: {reason}", remedy) if part)) from None


def parse_json(
    kind: type[T], text: str | bytes, where: str = "", *, error: type[ValueError] = ValueError, remedy: str = ""
) -> T:
    """Build a record from JSON text, like `parse`."""
    try:
        data = json.loads(text)
    except (ValueError, TypeError, RecursionError) as reason:  # a TypeError if it is no text
        words = f"{where or 'the text'} is truncated or not JSON ({reason})"
        raise error("; ".join(part for part in (words, remedy) if part)) from None
    return parse(kind, data, where, error=error, remedy=remedy)


def check_plain(data: object) -> None:
    """Refuse keys that are not text, and whole numbers of more than 64 bits, which no size or seed has."""
    rest = [data]
    while rest:
        value = rest.pop()
        if isinstance(value, dict):
            if other := [key for key in value if not isinstance(key, str)]:
                raise ValueError(f"a key is {shortened(other[0])}; it must be text")
            rest += value.values()
        elif isinstance(value, list | tuple):
            rest += value
        elif isinstance(value, int) and value.bit_length() > 63:
            raise ValueError(f"a whole number has {value.bit_length()} bits; the limit is 63")


def plain(record: Any) -> Any:
    """Return a record as dicts, lists, strings and numbers."""
    return adapter(type(record)).dump_python(record, mode="json")


def to_json(record: Any, indent: int | None = None) -> str:
    return json.dumps(plain(record), indent=indent)


def problem(error: ValidationError, kind: Any, data: object) -> str:
    """Describe the first error that pydantic reports."""
    first = error.errors(include_url=False)[0]
    name, place = first["type"], first["loc"]
    if name == "value_error":
        return clipped(str(first["ctx"]["error"]))
    if name in ("unexpected_keyword_argument", "extra_forbidden"):
        return unknown_key(dotted(place), list(known_keys(kind)))
    if name in ("missing", "missing_argument"):
        return f"{dotted(place)!r} is missing"
    place, value, annotation = followed(place, data, kind)
    wanted = first["msg"].removeprefix("Input should be ")
    if name.endswith(("_type", "_parsing", "_from_float", "literal_error")):
        wanted = wording(annotation) or wanted
    return f"{dotted(place) or 'it'} is {shortened(value)}; it must be {wanted}"


def unknown_key(name: str, known: Sequence[str]) -> str:
    """Say that a name is unknown, and suggest names of the same meaning or similar ones, from the same group first."""
    group, _, last = name.rpartition(".")
    beside = [each for each in known if each.rpartition(".")[0] == group]
    close = same(last, beside) or same(last, known) or similar(last, beside, 0.6) or similar(last, known, 0.8)
    hint = f"did you mean {' or '.join(close)}?" if close else f"known are {', '.join((beside or known)[:20])}"
    return f"{name!r} is unknown; {hint}"


def same(word: str, names: Sequence[str]) -> list[str]:
    """At most two dotted names that other programs, or other groups, call by this word."""
    meant = f".{SYNONYMS.get(word.lstrip('-'), word.lstrip('-'))}"
    return [name for name in names if f".{name.lstrip('-')}".endswith(meant)][:2]


def similar(word: str, names: Sequence[str], cutoff: float) -> list[str]:
    """At most two dotted names whose last part resembles the word."""
    ends = [name.rpartition(".")[2].lstrip("-") for name in names]
    close = difflib.get_close_matches(word.lstrip("-"), ends, n=2, cutoff=cutoff)
    return [name for best in dict.fromkeys(close) for name, end in zip(names, ends, strict=True) if end == best][:2]


def followed(place: Sequence[int | str], data: Any, kind: Any) -> tuple[tuple[int | str, ...], Any, Any]:
    """Follow a place into the data as far as it exists, and return the place reached, its value and its type.

    Pydantic appends the branches of unions to a place; these are not in the data.
    """
    for number, step in enumerate(place):
        try:
            data = data[step]
        except (TypeError, KeyError, IndexError):
            return tuple(place[:number]), data, kind
        kind = inner(kind, step)
    return tuple(place), data, kind


def inner(kind: Any, step: int | str) -> Any:
    """The type of a record's field, or of an entry of a list or dict; None if it is unknown."""
    for part in members(kind):
        if is_dataclass(part):
            return get_type_hints(part).get(str(step))
        if entries := [entry for entry in get_args(part) if entry is not Ellipsis]:
            return entries[step] if isinstance(step, int) and step < len(entries) else entries[-1]
    return None


def members(annotation: Any) -> tuple[Any, ...]:
    """The types of a union; any other type is returned alone."""
    return get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)


def dotted(place: Sequence[int | str]) -> str:
    """A place in dotted notation, such as rows[3].madds."""
    text = ""
    for step in place:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


def clipped(text: str, most: int = 600) -> str:
    """A text of unknown origin for a message: in one line, and not too long."""
    text = "".join(each if each.isprintable() else " " for each in text[: most + 1])
    return text if len(text) <= most else f"{text[: most - 3]}..."


def shortened(value: object) -> str:
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # nested too deeply, or a number with thousands of digits
        text = f"a {type(value).__name__}"
    return clipped(text, 80)


def known_keys(kind: Any, prefix: str = "") -> Iterator[str]:
    """The dotted names of a record's fields, groups included."""
    for part in (kind, *get_args(kind)):
        if is_dataclass(part) and isinstance(part, type):
            hints = get_type_hints(part)
            for field in fields(part):
                yield f"{prefix}{field.name}"
                yield from known_keys(hints[field.name], f"{prefix}{field.name}.")
            return


def wording(annotation: Any) -> str:
    """Describe the values of a type in words; empty if no words are known for a part of it."""
    words = []
    for part in members(annotation):
        origin = get_origin(part) or part
        if origin is Literal:
            words.append(f"one of {', '.join(map(str, get_args(part)))}")
        elif origin in (list, tuple):
            words.append(f"a list like {example(part)}" if example(part) else "a list")
        else:
            words.append(WORDS[dict] if is_dataclass(part) else WORDS.get(origin, ""))
    return " or ".join(words) if all(words) else ""


def example(annotation: Any) -> str:
    """An example list of this type in YAML; empty if its entries are neither numbers nor text."""
    entry = next(iter(get_args(annotation)), None)
    if get_origin(entry) in (list, tuple) and example(entry):
        return f"[{example(entry)}, {example(entry)}]"
    return EXAMPLES.get(entry, "")


@dataclass(frozen=True)
class Flag:
    """One key of a record as a command line shows it.

    Args:
        name: The dotted name, such as optim.lr.
        type: The annotation of the field.
        help: What the docstring of the record says about it.
        default: The default value.
        basic: Whether the short help shows it.
        group: What the docstring says about the group of this key; empty for keys outside groups.
    """

    name: str
    type: Any
    help: str
    default: Any
    basic: bool
    group: str = ""

    @property
    def metavar(self) -> str:
        for part in members(self.type):
            if get_origin(part) is Literal:
                return "{" + ",".join(map(str, get_args(part))) + "}"
            if get_origin(part) in (list, tuple):
                return example(part)
            if part in METAVARS:
                return METAVARS[part]
        return self.name.rpartition(".")[2].upper()


def flags(
    kind: Any, default: Any = None, basic: Sequence[str] = (), prefix: str = "", group: str = ""
) -> Iterator[Flag]:
    """The keys of a record and of its groups. The record's BASIC lists the keys that the short help shows."""
    default, basic = default or kind(), basic or getattr(kind, "BASIC", ())
    hints, texts = get_type_hints(kind), argument_texts(kind)
    for field in fields(kind):
        name, value, text = f"{prefix}{field.name}", getattr(default, field.name), texts.get(field.name, "")
        if is_dataclass(value):
            yield from flags(type(value), value, basic, f"{name}.", group or text)
        else:
            yield Flag(name, hints[field.name], text, value, name in basic, group)


def argument_texts(kind: type) -> dict[str, str]:
    """What the section "Args:" of a docstring says about each field."""
    _, _, section = inspect.cleandoc(kind.__doc__ or "").partition("Args:\n")
    texts: dict[str, str] = {}
    name = ""
    for line in section.splitlines():
        indent = len(line) - len(line.lstrip())
        if indent == 0:
            break
        if indent == 4:
            name, _, line = line.strip().partition(":")
        texts[name] = f"{texts.get(name, '')} {line.strip()}".strip()
    return texts
