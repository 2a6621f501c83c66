"""Tables and figures from result JSON."""
