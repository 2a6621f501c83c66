"""From scores to widths: the decision rule, dynamic inference, budgets."""

from dsnet.routing.budgets import calibrate, fit_threshold, parse_budget, policy_for
from dsnet.routing.decision import Policy, Prices, decide
from dsnet.routing.route import Routed, route
from dsnet.routing.traces import Outcome, Traces

__all__ = [
    "Outcome",
    "Policy",
    "Prices",
    "Routed",
    "Traces",
    "calibrate",
    "decide",
    "fit_threshold",
    "parse_budget",
    "policy_for",
    "route",
]
