"""dsnet eval: how good every width is."""

from __future__ import annotations

from pathlib import Path as File

from jsonargparse import ArgumentParser, Namespace


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "runs", nargs="+", help="folders that `dsnet train` wrote; several seeds are shown as mean and spread"
    )
    parser.add_argument("--split", choices=["test", "calibration", "train"], default="test", help="which images")
    parser.add_argument(
        "--sample", type=int, default=16, help="random paths beside the uniform ones, with several gates"
    )
    parser.add_argument("--root", type=str | None, default=None, help="where the data is now, if it moved")
    parser.add_argument("--seed", type=int, default=0, help="of the random paths")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument(
        "--export",
        type=str | None,
        default=None,
        help="also write PREFIX.json, PREFIX.png and PREFIX.md, for documentation",
    )


def run(args: Namespace, parser: ArgumentParser) -> None:
    from dsnet.checkpoint import load
    from dsnet.evaluate import combine
    from dsnet.pipeline import CONFIG, check_data, evaluate_split, open_data, read_config, write_result
    from dsnet.reports.show import export_result, show_result
    from dsnet.reports.tables import print_json

    results = []
    for name in args.runs:
        folder = File(name)
        net = load(folder)
        config = read_config(folder / CONFIG)
        data = open_data(config, args.root)
        check_data(folder, data)
        result = evaluate_split(net, data, config, split=args.split, sample=args.sample, seed=args.seed)
        write_result(folder, args.split, result)
        results.append(result)
    result = combine(results)
    if args.json:
        print_json(result)
    else:
        name = args.split if len(args.runs) == 1 else f"{args.split}-{len(args.runs)}-seeds"
        show_result(result, File(args.runs[0]) / "results" / f"{name}.png")
    if args.export:
        export_result(result, File(args.export))
