"""Typed records and how they are read: pydantic checks, this room puts its findings into words for people.

A record is a frozen dataclass that inherits from `Typed`. `parse` builds one from plain data, `plain` turns one into
what JSON and YAML hold. Unknown keys are refused. `flags` lists what a command line needs to know of a record.
"""

from __future__ import annotations

import difflib
import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from types import NoneType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

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


def parse(
    kind: type[T],
    data: object,
    where: str = "",
    *,
    error: type[ValueError] = ValueError,
    remedy: str = "",
    strict: bool = False,
) -> T:
    """A record from plain data. One line of error names the place, the value, what it must be, and the remedy.

    A strict reader takes true for no number, and text for no number either.
    """
    try:
        if strict:  # as JSON, where a list is the way to write a tuple
            return adapter(kind).validate_json(json.dumps(data, default=str), strict=True)
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
    if all(str(each["type"]).endswith(("_type", "_parsing", "_from_float", "literal_error")) for each in same):
        wanted = wordings(annotation_at(kind, place)) or wanted
    value = first["input"] if len(same) == 1 else value_at(data, place)
    return f"{dotted(place) or 'it'} is {shortened(value)}; it must be {' or '.join(wanted)}"


def unknown_key(name: str, known: Sequence[str]) -> str:
    """That a name is unknown, and which one of its group, or else of another group, may have been meant."""
    group, _, last = name.rpartition(".")
    beside = [each for each in known if each.rpartition(".")[0] == group]
    close = similar(last, beside, 0.6) or similar(last, known, 0.8)
    hint = f"did you mean {' or '.join(close)}?" if close else f"known are {', '.join((beside or known)[:20])}"
    return f"{name!r} is unknown; {hint}"


def similar(word: str, names: Sequence[str], cutoff: float) -> list[str]:
    """At most two dotted names whose last part is like this word."""
    ends = [name.rpartition(".")[2].lstrip("-") for name in names]
    close = difflib.get_close_matches(word.lstrip("-"), ends, n=2, cutoff=cutoff)
    return [name for best in dict.fromkeys(close) for name, end in zip(names, ends, strict=True) if end == best][:2]


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


def annotation_at(kind: Any, place: Sequence[int | str]) -> Any:
    """The type of what stands at a place of a record; None where it cannot be told."""
    for step in place:
        records = [part for part in (kind, *get_args(kind)) if is_dataclass(part)]
        if isinstance(step, int) or not records:
            return None
        kind = get_type_hints(records[0]).get(step)
    return kind


def wordings(annotation: Any) -> list[str]:
    """What a value of this type may be, in words; empty where a part of the type has none."""
    if get_origin(annotation) is Literal:
        return [f"one of {', '.join(map(str, get_args(annotation)))}"]
    if annotation in WORDS:
        return [WORDS[annotation]]
    if is_dataclass(annotation):
        return ["a group of keys"]
    if get_origin(annotation) in (list, tuple):
        return [f"a list like {example(annotation)}"]
    found = [wordings(part) for part in get_args(annotation)]
    return [word for part in found for word in part] if all(found) else []


def example(annotation: Any) -> str:
    """A value of this type as people write it in YAML."""
    inner = [part for part in get_args(annotation) if part is not Ellipsis]
    if get_origin(annotation) not in (list, tuple) or not inner:
        return {int: "0", float: "0.5", bool: "true", str: "a"}.get(annotation, "...")
    if example(inner[0]) == "0":
        return "[0, 2]"
    if len(inner) == 2:
        return "[0.5, 1.0]"
    return f"[{example(inner[0])}, {'b' if inner[0] is str else example(inner[0])}]"


WORDS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    NoneType: "null",
}
METAVARS: dict[Any, str] = {int: "N", float: "X", bool: "true|false"}


@dataclass(frozen=True)
class Flag:
    """One key of a record as a command line shows it.

    Args:
        name: The dotted name, such as optim.lr.
        type: The annotation of the field.
        help: What the docstring of the record says about it.
        default: The value that it has unless it is given.
        basic: Whether the short help shows it.
        group: What the docstring says about the group that it belongs to; empty for keys outside groups.
    """

    name: str
    type: Any
    help: str
    default: Any
    basic: bool
    group: str = ""

    @property
    def choices(self) -> tuple[str, ...]:
        """The values that it may have, where they are a list of words."""
        parts = [part for part in (self.type, *get_args(self.type)) if get_origin(part) is Literal]
        return tuple(map(str, get_args(parts[0]))) if parts else ()

    @property
    def metavar(self) -> str:
        if self.choices:
            return "{" + ",".join(self.choices) + "}"
        part = next((part for part in (self.type, *get_args(self.type)) if part in METAVARS or part is str), None)
        if get_origin(self.type) in (list, tuple):
            return example(self.type)
        if part is None:
            return next(example(part) for part in get_args(self.type) if get_origin(part) in (list, tuple))
        return METAVARS.get(part, self.name.rpartition(".")[2].upper())


def flags(kind: type) -> Iterator[Flag]:
    """The keys of a record and of its groups; the record's BASIC names those that people use first."""
    basic = getattr(kind, "BASIC", ())
    yield from flags_below(kind, kind(), basic)


def flags_below(kind: Any, default: Any, basic: Sequence[str], prefix: str = "", group: str = "") -> Iterator[Flag]:
    hints, texts = get_type_hints(kind), argument_texts(kind)
    for field in fields(kind):
        name, value = f"{prefix}{field.name}", getattr(default, field.name)
        if is_dataclass(value):
            yield from flags_below(
                type(value), value, basic, f"{name}.", texts.get(field.name, "") if not prefix else group
            )
        else:
            yield Flag(name, hints[field.name], texts.get(field.name, ""), value, name in basic, group)


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
