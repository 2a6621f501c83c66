"""Tables of budgets on images unlike the calibration images."""

from __future__ import annotations

from dsnet.report.tables import human
from dsnet.results import Evaluation, Stat, Table

CORRUPTED = (
    "Noise: standard deviation in % of the pixels' range. Blur: radius in % of the image's side. JPEG: quality. "
    "Tracking is given 16 images at a time, in random order."
)


def drift_tables(result: Evaluation) -> list[Table]:
    """MAdds and scores on corrupted images, without and with tracking; none if they were not evaluated."""
    if not result.drift:
        return []
    names = [row.name or human(row.asked) for row in result.drift[0].budgets]
    metric, percent = result.metric, "%" in result.metric.form

    def score(stat: Stat) -> str:
        if not percent:
            return format(stat.mean, metric.form)
        return f"{100 * stat.mean:.1f}".replace("100.0", "100")  # with 100.0 a row may take more than 80 columns

    ratios = [
        (
            row.images,
            *(f"{one.spent.mean / one.asked:.2f}→{one.tracked_spent.mean / one.asked:.2f}" for one in row.budgets),
        )
        for row in result.drift
    ]
    scores = [
        (row.images, score(row.widest), *(f"{score(one.score)}→{score(one.tracked_score)}" for one in row.budgets))
        for row in result.drift
    ]
    ratios_title = "MAdds spent / asked on other images, without → with tracking"
    scores_title = f"{metric.name}{' in %' * percent} on other images, without → with tracking"
    return [
        Table(ratios_title, ("<images", *names), tuple(ratios), CORRUPTED),
        Table(scores_title, ("<images", "full", *names), tuple(scores), "Full: the widest path for every image."),
    ]
