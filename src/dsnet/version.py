"""The version, apart from everything else so that any room may read it."""

__version__ = "0.1.0"
