"""Fixtures of all tests in this folder."""
from place import cluster, make_folder, running  # noqa: F401
