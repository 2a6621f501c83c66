"""Runs: from a config to a folder, for any task."""
