"""Tables and figures about classes: precision, recall and F1, what is confused, and what budgets cost each class."""

from __future__ import annotations

from collections.abc import Sequence

from dsnet.report.tables import human, points
from dsnet.results import Answers, ClassRow, Evaluation, Matrix, Table

MOST = 30  # up to this many classes a confusion matrix is drawn; of more, the most frequent pairs are listed
PAIRS = 20


def names_of(result: Evaluation) -> Sequence[str]:
    count = len(result.answers[0].classes) if result.answers else 0
    return result.classes or [str(number) for number in range(count)]


def network_of(answers: Answers, result: Evaluation) -> str:
    """Which network gave the answers."""
    if answers.budget is None or result.dynamic is None:
        return "full network"
    return f"dynamic at {human(result.dynamic.rows[answers.budget].madds.mean)}"


def matrices(result: Evaluation) -> list[Matrix]:
    """The confusion matrix of every network whose answers are known; none if there are too many classes."""
    names = names_of(result)
    if not 1 < len(names) <= MOST:
        return []
    found = []
    for answers in result.answers:
        counts = [[0] * len(names) for _ in names]
        for label, answer, images in answers.wrong:
            counts[label][answer] = images
        for label, row in enumerate(counts):
            row[label] = answers.classes[label].images - sum(row)
        title = f"Confusion matrix, {network_of(answers, result)}"
        found.append(Matrix(title, "answer", "class", tuple(names), tuple(map(tuple, counts))))
    return found


def pairs_table(result: Evaluation) -> Table | None:
    """The pairs of classes that are confused most; None if a matrix shows them, or nothing is confused."""
    names = names_of(result)
    wrong = [{(label, answer): images for label, answer, images in one.wrong} for one in result.answers]
    if len(names) <= MOST or not any(wrong):
        return None
    totals = {pair: sum(each.get(pair, 0) for each in wrong) for known in wrong for pair in known}
    most = sorted(totals, key=lambda pair: (-totals[pair], pair))[:PAIRS]
    rows = [
        (
            *(names[label], names[answer], str(result.answers[0].classes[label].images)),
            *(str(each.get((label, answer), 0)) for each in wrong),
        )
        for label, answer in most
    ]
    columns = ("<class", "<taken for", "images of the class", *(network_of(one, result) for one in result.answers))
    return Table(f"The {len(most)} most frequent confusions, in images", columns, tuple(rows))


def scores_table(result: Evaluation) -> Table | None:
    """Precision, recall and F1 of every class, and their means over classes."""
    if not result.answers:
        return None
    columns = ["<class", "images"]
    for answers in result.answers:
        columns += [f"{network_of(answers, result)}: precision", "recall", "F1"]
    each = [[(one.precision, one.recall, one.f1) for one in answers.classes] for answers in result.answers]
    rows = [
        (name, str(result.answers[0].classes[place].images), *(percent(v) for network in each for v in network[place]))
        for place, name in enumerate(names_of(result))
    ]
    means = [mean([row[place] for row in network]) for network in each for place in range(3)]
    images = str(sum(one.images for one in result.answers[0].classes))
    rows.append(("mean of classes", images, *map(percent, means)))
    return Table("Precision, recall and F1 of every class", tuple(columns), tuple(rows))


def losses_table(result: Evaluation) -> Table | None:
    """The score that each class loses against the full network at each budget; those that lose most come first."""
    lost = losses(result)
    if result.dynamic is None or not lost:
        return None
    place, form = result.dynamic.shown, result.metric.form
    spent = [human(row.madds.mean) for row in result.dynamic.rows]
    budgets = [f"{madds}{' (best)' * (number == place)}" for number, madds in enumerate(spent)]
    rows = [
        (row.name, str(row.images), format(full, form), *(points(result, value) for value in each))
        for row, full, each in sorted(lost, key=lambda one: (one[2][place], one[0].name))
    ]
    counted = "images" if result.objects is None else "objects"
    note = f"Difference to the full network's {result.metric.name} in the class, at each budget's average MAdds."
    title = f"{result.metric.name} lost per class at every budget"
    return Table(title, ("<class", counted, "full network", *budgets), tuple(rows), note)


def losses(result: Evaluation) -> list[tuple[ClassRow, float, tuple[float, ...]]]:
    """Of every class that has images: its row, the full network's score, and what each budget's score differs by."""
    lost = []
    for label, row in enumerate(result.dynamic.classes if result.dynamic is not None else ()):
        if result.answers:
            full = result.answers[0].classes[label].recall
        else:
            full = result.full.more[row.name].mean if row.name in result.full.more else None
        scores = [score for score in row.scores if score is not None]
        if full is not None and len(scores) == len(row.scores):
            lost.append((row, full, tuple(score - full for score in scores)))
    return lost


def worst(result: Evaluation) -> str:
    """The class that loses most at the best budget, in a sentence; empty if losses are not known."""
    lost = losses(result)
    if result.dynamic is None or not lost:
        return ""
    place = result.dynamic.shown
    row, _, each = min(lost, key=lambda one: (one[2][place], one[0].name))
    if each[place] >= 0:
        return "No class loses against the full network at the best budget."
    counted, points_of = ("images", " points") if result.objects is None else ("objects", "")
    return (
        f"At the best budget the class {row.name} loses most against the full network: "
        f"{points(result, each[place], 1)}{points_of} on {row.images} {counted}."
    )


def mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"
