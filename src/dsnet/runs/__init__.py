"""Runs of any task: from a config to a folder with the trained network and its evaluation."""
