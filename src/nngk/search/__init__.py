"""Neighbour search: one protocol, several engines."""

from nngk.search.choose import ENGINES, Choice, choose, create_engine, require_engine
from nngk.search.disk_index import DiskIndex
from nngk.search.engine import Engine
from nngk.search.exact import Exact
from nngk.search.fanng import FANNG
from nngk.search.index import Index

__all__ = [
    "ENGINES",
    "FANNG",
    "Choice",
    "DiskIndex",
    "Engine",
    "Exact",
    "Index",
    "choose",
    "create_engine",
    "require_engine",
]
