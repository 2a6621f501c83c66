"""Tables and figures about classes: precision, recall and F1, what is confused, and what budgets cost each class."""

from __future__ import annotations

from collections.abc import Sequence

from dsnet.report.tables import human, points
from dsnet.results import Answers, Evaluation, Matrix, Table

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
    """The accuracy that each class loses against the full network at each budget; those that lose most come first."""
    lost = losses(result)
    if result.dynamic is None or not lost:
        return None
    place, full = result.dynamic.shown, result.answers[0].classes
    names = names_of(result)
    rows = [
        (names[label], str(full[label].images), percent(full[label].recall), *(points(result, value) for value in each))
        for label, each in sorted(lost.items(), key=lambda item: (item[1][place], item[0]))
    ]
    budgets = [
        f"{human(row.madds.mean)}{' (best)' * (number == place)}" for number, row in enumerate(result.dynamic.rows)
    ]
    note = "Points against the full network's accuracy in the class, at each budget's average MAdds."
    columns = ("<class", "images", "full network", *budgets)
    return Table("Accuracy lost per class at every budget", columns, tuple(rows), note)


def losses(result: Evaluation) -> dict[int, tuple[float, ...]]:
    """The accuracy of every class at each budget minus the full network's; without classes that have no images."""
    if result.dynamic is None or not result.answers:
        return {}
    lost = {}
    for label, row in enumerate(result.dynamic.classes):
        full = result.answers[0].classes[label].recall
        scores = [score for score in row.scores if score is not None]
        if full is not None and len(scores) == len(row.scores):
            lost[label] = tuple(score - full for score in scores)
    return lost


def worst(result: Evaluation) -> str:
    """The class that loses most at the best budget, in a sentence; empty if none loses anything."""
    lost = losses(result)
    if result.dynamic is None or not lost:
        return ""
    place = result.dynamic.shown
    label = min(lost, key=lambda each: (lost[each][place], each))
    if lost[label][place] >= 0:
        return "No class loses accuracy against the full network at the best budget."
    images, change = result.answers[0].classes[label].images, points(result, lost[label][place], 1)
    return (
        f"At the best budget the class {names_of(result)[label]} loses most against the full network: {change} points "
        f"on {images} images."
    )


def mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"
