"""Latency of every width and budget, next to static networks."""
