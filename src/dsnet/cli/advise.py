"""dsnet advise: which width or budget to deploy."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from dsnet.cli.arguments import Parser

if TYPE_CHECKING:
    from dsnet.advise import Demand, Measured, Option
    from dsnet.results import Bench, Evaluation


def add_arguments(parser: Parser) -> None:
    parser.add("place", "A run folder that was evaluated, or an ONNX file or a bundle, which carry their evaluation.")
    accuracy = "Least accuracy, such as 0.9 or 90%%. The cheapest option that reaches it is recommended."
    parser.add("--accuracy", accuracy, metavar="SHARE")
    latency = "Most milliseconds per image on average, such as 5ms. The most accurate option within it is recommended."
    parser.add("--latency", latency, metavar="TIME")
    budget = "Most MAdds on average, such as 0.5 or 150M. The most accurate option within it is recommended."
    parser.add("--budget", budget)
    parser.add("--json")


def run(args: Namespace) -> None:
    from dsnet.advise import advise
    from dsnet.report.advice import as_json, command, sentences, table, wrapped
    from dsnet.report.tables import print_json, show

    result, measured, pinnable = find(Path(args.place))
    demand = demand_of(args, result)
    if demand.latency is not None and not measured.fixed:
        raise ValueError(f"no milliseconds of {args.place} are known; measure them with `dsnet bench {args.place}`")
    advice = advise(result, demand, measured)
    if advice is None:
        raise ValueError(f"{args.place} has a single width, so there is nothing to choose")

    def how(option: Option) -> str:
        return command(option, result, args.place, "run" if pinnable is None else "file", pinnable)

    if args.json:
        print_json(as_json(advice, result, args.place, how))
        return
    show([table(advice, result)])
    print(wrapped(" ".join(sentences(advice, result))))
    if advice.choice is not None:
        print(f"  {how(advice.choice)}")


def find(place: Path) -> tuple[Evaluation, Measured, list[tuple[int, ...]] | None]:
    """The evaluation of a run on its test images or of an exported file, its milliseconds, and the paths of a file."""
    from dsnet.advise import measured_in
    from dsnet.results import Evaluation, read
    from dsnet.runtime.onnx import is_artefact, open_onnx

    if is_artefact(place):
        manifest = open_onnx(place).manifest
        if manifest.evaluation is None:
            if manifest.precision == "int8":
                raise ValueError(
                    f"{place} is quantised and holds no evaluation; `dsnet eval {place}` ends with this advice"
                )
            raise ValueError(
                f"{place} was exported without an evaluation; run `dsnet eval` on its run, then `dsnet export` again"
            )
        return manifest.evaluation, table_of(manifest.digest, manifest.evaluation), manifest.pinnable
    if not place.is_dir():
        raise ValueError(f"{place} does not exist; give a run folder, an ONNX file or a bundle")
    result = read(place / "results" / "test.json", Evaluation, remedy=f"run `dsnet eval {place}` first")
    return result, measured_in(bench_of(place), result), None


def table_of(weights: str, result: Evaluation) -> Measured:
    """The milliseconds of a network's newest latency table on this processor; nothing if there is none."""
    from dsnet.advise import Measured, timed_by
    from dsnet.latency import cpu, tables

    alike = (one for one in tables(weights) if one.setting.image_size == result.image_size)
    held = next((one for one in alike if one.setting.cpu == cpu()), None)
    return Measured() if held is None else timed_by(held, result)


def bench_of(run: Path) -> Bench | None:
    """The benchmark of a run, or None if there is none that this version reads."""
    from dsnet.errors import ResultError
    from dsnet.results import Bench, read

    try:
        return read(run / "results" / "bench.json", Bench)
    except ResultError:
        return None


def demand_of(args: Namespace, result: Evaluation) -> Demand:
    """What is asked for. A limit in MAdds becomes a share of the full network's."""
    from dsnet.advise import Demand
    from dsnet.routing.budgets import read_budget, read_latency

    given = [name for name in ("accuracy", "latency", "budget") if getattr(args, name) is not None]
    if len(given) > 1:
        raise ValueError(f"--{given[0]} and --{given[1]} are two demands; give one")
    if args.accuracy is not None:
        return Demand(accuracy=read_share(args.accuracy))
    if args.latency is not None:
        return Demand(latency=read_latency(args.latency))
    if args.budget is not None:
        amount = read_budget(args.budget)
        full = result.full  # a share is one of the widest path that the network has, which a file may lack
        return Demand(budget=amount.value / full.share if amount.is_share else amount.value / full.madds)
    return Demand()


def read_share(text: str) -> float:
    """A score such as 0.9 or 90%."""
    number = text.strip().removesuffix("%")
    try:
        value = float(number) / (100 if number != text.strip() else 1)
    except ValueError:
        value = -1.0
    if not 0 < value <= 1:
        raise ValueError(f"--accuracy is {text!r}; it must be a share such as 0.9 or 90%")
    return value
