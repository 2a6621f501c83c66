"""Tables, figures and pages from results."""
