"""From scores to widths: the decision rule, dynamic inference, budgets."""
