"""Typed records and how they are read: pydantic checks, this room puts its findings into words for people.

A record is a frozen dataclass that inherits from `Typed`. `parse` builds one from plain data, `plain` turns one into
what JSON and YAML hold. Unknown keys are refused.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar, get_args, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

T = TypeVar("T")
KINDS = {
    "int": "a whole number",
    "float": "a number",
    "finite_number": "a finite number",
    "bool": "true or false",
    "string": "text",
    "tuple": "a list",
    "list": "a list",
    "dict": "a group of keys",
    "dataclass": "a group of keys",
    "none": "null",
}


class Typed:
    """A dataclass that is read by `parse`; keys that it does not have are refused."""

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=True)


ADAPTERS: dict[Any, TypeAdapter[Any]] = {}


def adapter(kind: Any) -> TypeAdapter[Any]:
    """Pydantic's reader and writer of a type, made once."""
    if kind not in ADAPTERS:
        ADAPTERS[kind] = TypeAdapter(kind)
    return ADAPTERS[kind]


def parse(kind: type[T], data: object, where: str = "", *, error: type[ValueError] = ValueError, remedy: str = "") -> T:
    """A record from plain data. One line of error names the place, the value, what it must be, and the remedy."""
    try:
        return adapter(kind).validate_python(data)
    except ValidationError as found:
        words = "; ".join(part for part in (problem(found, kind, data), remedy) if part)
        raise error(f"{where}: {words}" if where else words) from None
    except RecursionError:
        raise error(f"{where or kind.__name__} is nested too deeply; restore it from a copy") from None


def parse_json(
    kind: type[T], text: str | bytes, where: str = "", *, error: type[ValueError] = ValueError, remedy: str = ""
) -> T:
    """`parse` of a JSON text."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as found:
        words = f"{where or 'the text'} is truncated or not JSON ({found})"
        raise error("; ".join(part for part in (words, remedy) if part)) from None
    return parse(kind, data, where, error=error, remedy=remedy)


def plain(record: Any) -> Any:
    """A record as dicts, lists, text and numbers."""
    return adapter(type(record)).dump_python(record, mode="json")


def to_json(record: Any, indent: int | None = None) -> str:
    return json.dumps(plain(record), indent=indent)


def problem(error: ValidationError, kind: Any, data: object) -> str:
    """The first finding of pydantic in words."""
    found = error.errors(include_url=False)
    first = found[0]
    if first["type"] == "value_error":
        return str(first["ctx"]["error"])
    if first["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        return unknown_key(dotted(first["loc"]), list(known_keys(kind)))
    place = followed(first["loc"], data)
    if first["type"] in ("missing", "missing_argument"):
        return f"{dotted(first['loc'])!r} is missing"
    same = [each for each in found if followed(each["loc"], data) == place]
    wanted = list(dict.fromkeys(expectation(each) for each in same))
    value = first["input"] if len(same) == 1 else value_at(data, place)
    return f"{dotted(place) or 'it'} is {shortened(value)}; it must be {' or '.join(wanted)}"


def unknown_key(name: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, known, n=2, cutoff=0.6)
    hint = f"did you mean {' or '.join(close)}?" if close else f"known are {', '.join(known[:12])}"
    return f"{name!r} is unknown; {hint}"


def expectation(finding: Mapping[str, Any]) -> str:
    kind = str(finding["type"])
    if kind == "literal_error":
        return f"one of {str(finding['ctx']['expected']).replace(chr(39), '').replace(' or ', ', ')}"
    word = next((words for name, words in KINDS.items() if kind.startswith(name)), "")
    return word or str(finding["msg"]).removeprefix("Input should be ")


def followed(place: Sequence[int | str], data: object) -> tuple[int | str, ...]:
    """The part of a place that the data has; pydantic adds the branches of unions to it."""
    kept: list[int | str] = []
    for step in place:
        try:
            data = data[step]  # type: ignore[index]
        except (TypeError, KeyError, IndexError):
            break
        kept.append(step)
    return tuple(kept)


def value_at(data: Any, place: Sequence[int | str]) -> Any:
    for step in place:
        data = data[step]
    return data


def dotted(place: Sequence[int | str]) -> str:
    """A place as people write it: rows[3].madds."""
    text = ""
    for step in place:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


def shortened(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def known_keys(kind: Any, prefix: str = "") -> Iterator[str]:
    """The dotted names of a record's fields, groups included."""
    for part in (kind, *get_args(kind)):
        if is_dataclass(part) and isinstance(part, type):
            hints = get_type_hints(part)
            for field in fields(part):
                yield f"{prefix}{field.name}"
                yield from known_keys(hints[field.name], f"{prefix}{field.name}.")
            return
