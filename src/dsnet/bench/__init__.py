"""Measures latency: every width, every budget, beside static networks."""
