"""Neighbour search: one protocol, several engines."""

from nngk.search.exact import Exact
from nngk.search.protocol import Engine

__all__ = ["Engine", "Exact"]
