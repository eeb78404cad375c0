"""Neighbour search: one protocol, several engines."""

from nngk.search.exact import Exact
from nngk.search.fanng import FANNG
from nngk.search.protocol import Engine

__all__ = ["FANNG", "Engine", "Exact"]
