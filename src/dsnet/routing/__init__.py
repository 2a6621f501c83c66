"""From a router's scores to widths: the decision rule, dynamic inference and budgets."""
