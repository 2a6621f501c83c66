"""Advice in words and as a table: what to deploy, why, and by which command."""

from __future__ import annotations

import shlex
import shutil
import textwrap
from collections.abc import Callable
from typing import Any, Literal

from dsnet.advise import Advice, Option, advise, measured_in
from dsnet.paired import wilson
from dsnet.report.tables import filled, human, points, to_full
from dsnet.results import Bench, Evaluation, Table
from dsnet.schema import plain
from dsnet.space import WidthPath

MUCH = 0.02  # a loss that the images should be able to exclude
TILES = ("<", "", "<")
INTERVAL = "To full, 95 %: paired interval of the difference to the full network; equal if it includes zero."
Kind = Literal["run", "file"]


def sentences(advice: Advice, result: Evaluation) -> list[str]:
    """What to deploy and why."""
    choice, demand = advice.choice, advice.demand
    if choice is None:
        words = ["There is no verdict: this evaluation has no paired intervals, so it cannot tell what is equal."]
    elif not advice.met:
        words = [
            f"Nothing {wanted(advice, result)}.",
            f"The closest is {named(choice, result)}: {figures(choice, result)}.",
        ]
    elif choice.full:
        words = [f"Deploy {whole(result)}: {figures(choice, result)}. Everything cheaper is less accurate."]
        if not demand.none:
            words = [f"Deploy {whole(result)}: {figures(choice, result)}."]
    else:
        lead = "Deploy"
        if choice.path is not None and demand.none and any(option.path is None for option in advice.options):
            lead = "A fixed width is as good here: deploy"
        words = [f"{lead} {named(choice, result)}: {figures(choice, result)}.", compared(advice, choice, result)]
    if demand.accuracy is not None and advice.met and choice is not None and result.objects is None:
        low, _ = wilson(choice.score, result.images)
        if low < demand.accuracy:
            words.append(f"On {result.images} images the 95 % interval reaches down to {low:{result.metric.form}}.")
    near, other = advice.near, dynamic_of(advice, result)
    if near is not None:
        lost = advice.full.score - near.score
        lead = f"At a loss of {worded(result, lost).removeprefix('+')}" if lost > 0 else "No less accurate"
        words.append(f"{lead}: {named(near, result)}, {figures(near, result)}.")
    if demand.none and other is not None and other != near and choice is not None and choice.path is not None:
        words.append(f"{named(other, result).capitalize()}: {figures(other, result)}.")
    return words


def whole(result: Evaluation) -> str:
    """The widest path that was evaluated, inside a sentence. A file may lack that of the network."""
    return "the full network" if result.full.share >= 1 else "the widest path of the file"


def named(option: Option, result: Evaluation) -> str:
    """An option inside a sentence."""
    if option.full:
        return whole(result)
    return option.name if option.path is not None else f"the dynamic network at budget {option.budget:g}"


def figures(option: Option, result: Evaluation) -> str:
    """Score, MAdds and milliseconds of an option."""
    cost = "" if option.full else f", {option.share * result.full.share:.0%} of the full network's MAdds"
    words = f"{result.metric.name} {option.score:{result.metric.form}}{cost}"
    return words if option.times is None else f"{words}, {option.times.mean:.2f} ms (p99 {p99(option)})"


def compared(advice: Advice, option: Option, result: Evaluation) -> str:
    """The full network's figures and the difference to it."""
    full, known = advice.full, option.to_full
    words = f"{whole(result).capitalize()} has {full.score:{result.metric.form}}"
    words += "" if full.times is None or option.times is None else f" in {full.times.mean:.2f} ms (p99 {p99(full)})"
    if known is None:
        return f"{words}."
    low, high = known.interval
    verdict = {0: "counts as equal", 1: "is a gain", -1: "is a loss"}[known.sign]
    span = f"{points(result, low)} to {points(result, high)}"
    words += f"; the difference of {worded(result, known.mean)} {verdict} (95 % interval {span})."
    if known.sign == 0 and low < -MUCH:
        lost = worded(result, -low).removeprefix("+")
        words += f" {result.images} images cannot exclude a loss of {lost}: evaluate on more."
    return words


def wanted(advice: Advice, result: Evaluation) -> str:
    """A demand as the end of a sentence that begins with `Nothing`."""
    demand = advice.demand
    if demand.accuracy is not None:
        return f"reaches {result.metric.name} {demand.accuracy:{result.metric.form}}"
    if demand.latency is not None:
        return f"takes {demand.latency:g} ms or less on average"
    assert demand.budget is not None
    return f"costs {demand.budget * result.full.share:.1%} of the full network's MAdds or less"


def worded(result: Evaluation, value: float) -> str:
    """A difference of scores with its unit."""
    return f"{points(result, value)} {'points' if '%' in result.metric.form else result.metric.name}"


def p99(option: Option) -> str:
    known = None if option.times is None else option.times.p99
    return "" if known is None else f"{known:.2f}"


def dynamic_of(advice: Advice, result: Evaluation) -> Option | None:
    """The dynamic network at its best budget."""
    if result.dynamic is None:
        return None
    routed = [option for option in advice.options if option.path is None]
    best = result.dynamic.best_row.madds.mean
    return next((option for option in routed if option.madds == best), None)


def command(
    option: Option, result: Evaluation, place: str, kind: Kind = "run", pinnable: list[WidthPath] | None = None
) -> str:
    """The command that deploys an option of a run, or runs it from an exported file. pinnable: paths of the file."""
    how = f"--budget {option.budget:g}" if option.path is None else f"--path {result.path_name(option.path)}"
    for cap in ("max_width", "max_size"):
        how += "" if getattr(option, cap) is None else f" --{cap} {getattr(option, cap)}"
    if kind == "run":
        return f"dsnet export {shlex.quote(place)} {how}"
    if option.path is not None and pinnable is not None and option.path not in pinnable:
        return f"dsnet export RUN {how}"
    return f"dsnet predict {shlex.quote(place)} PHOTOS {how}"


def table(advice: Advice, result: Evaluation) -> Table:
    """The options that no other one beats, the full network, the dynamic network at its best budget, and what is
    recommended."""
    always = (advice.full, advice.choice, dynamic_of(advice, result))
    front = advice.front
    shown = [option for option in advice.options if option in front or option in always]
    columns: dict[str, Callable[[Option], str]] = {
        "<option": lambda row: f"{'>' if row == advice.choice else ' '} {row.name}",
        result.metric.name: lambda row: format(row.score, result.metric.form),
        "<to full, 95 %": lambda row: interval(row, result),
        "MAdds": lambda row: f"{row.share:.0%}",
    }
    missing = sum(option.times is None for option in advice.options)
    if missing < len(advice.options):
        columns |= {
            "ms": lambda row: "" if row.times is None else f"{row.times.mean:.2f}",
            "p95": lambda row: "" if row.times is None else f"{row.times.p95:.2f}",
            "p99": p99,
        }
    notes = ["Other options that are beaten in both cost and score are left out.", INTERVAL]
    notes += [f"Milliseconds: {advice.measured}."] if advice.measured else []
    if advice.measured and missing and advice.demand.budget is None:
        notes.append(f"{missing} options were not timed, so MAdds are compared; `dsnet bench` times them.")
    return filled(f"{result.model}, {result.images} {result.split} images", shown, columns, " ".join(notes))


def interval(option: Option, result: Evaluation) -> str:
    if option.to_full is None:
        return ""
    ends = option.to_full.interval
    words = " ".join(points(result, end, 1) for end in ends)
    return f"{words} equal" if option.to_full.sign == 0 else words


def paragraph(result: Evaluation, bench: Bench | None, place: str) -> str:
    """The advice without a demand and its command, as a page begins with it. Empty for a single width, or if there is
    no verdict."""
    advice = advise(result, measured=measured_in(bench, result))
    if advice is None or advice.choice is None:
        return ""
    return f"{' '.join(sentences(advice, result))}\n`{command(advice.choice, result, place)}`"


def show_advice(result: Evaluation, bench: Bench | None, place: str, kind: Kind = "run") -> None:
    """Print the advice without a demand, if the images are test images and there is a verdict."""
    advice = advise(result, measured=measured_in(bench, result)) if result.split == "test" else None
    if advice is not None and advice.choice is not None:
        print(f"\n{wrapped(' '.join(sentences(advice, result)))}")
        print(f"  {command(advice.choice, result, place, kind)}")


def wrapped(words: str) -> str:
    return textwrap.fill(words, min(100, shutil.get_terminal_size().columns), break_on_hyphens=False)


def key_figures(result: Evaluation, bench: Bench | None) -> Table:
    """The key numbers of a run: the full network, what is recommended, its MAdds and milliseconds beside the full
    network's, the dynamic network at its best budget, and the slimmest width."""
    unit, form = result.metric.name, result.metric.form
    advice, full = advise(result, measured=measured_in(bench, result)), result.full
    if advice is None:
        return Table("", TILES, ((f"Accuracy, {unit}", format(full.score.mean, form), f"{human(full.madds)} MAdds"),))
    note = f"{human(full.madds)} MAdds"
    note += "" if advice.full.times is None else f", {advice.full.times.mean:.2f} ms per image"
    figures = [(f"Full network, {unit}", format(full.score.mean, form), note)]
    choice, routed = advice.choice, dynamic_of(advice, result)
    main = choice if choice is not None and not choice.full else routed
    if main is not None:
        lead = "Recommended" if main == choice else "Dynamic network"
        known, full_times = to_full(main, result), advice.full.times
        note = (
            f"{main.name}: {'equal to the full network' if known == 'equal' else f'{known} against the full network'}"
        )
        figures.append((f"{lead}, {unit}", format(main.score, form), note if known else main.name))
        figures.append(("MAdds", f"{main.share:.0%}", f"of the full network's: {human(main.madds)} on average"))
        if main.times is not None and full_times is not None:
            note = (
                f"ms per image; the full network takes {full_times.mean:.2f} (p99 {p99(main)} and {p99(advice.full)})"
            )
            figures.append(("Milliseconds", f"{main.times.mean:.2f}", note))
    if routed is not None and main is not None and main.path is not None:
        note = f"budget {routed.budget:g}: {routed.share:.0%} of the full network's MAdds"
        figures.append((f"Dynamic network, {unit}", format(routed.score, form), note))
    slimmest = result.uniform[0]
    if main is None or slimmest.path != main.path:
        note = f"{slimmest.madds / full.madds:.0%} of the full network's MAdds"
        figures.append((f"Slimmest width, {unit}", format(slimmest.score.mean, form), note))
    return Table("", TILES, tuple(figures))


def as_json(advice: Advice, result: Evaluation, place: str, how: Callable[[Option], str]) -> dict[str, Any]:
    """The content of `dsnet advise --json`."""
    choice = advice.choice
    return {
        "place": place,
        "metric": result.metric.name,
        "split": result.split,
        "images": result.images,
        "met": advice.met,
        "advice": sentences(advice, result),
        "command": None if choice is None else how(choice),
        "choice": None if choice is None else choice.name,
        "near": None if advice.near is None else advice.near.name,
        "unit": advice.unit,
        "measured": advice.measured,
        "demand": plain(advice.demand),
        "options": [plain(option) for option in advice.options],
    }
