"""Measurements of neighbour search on this machine."""
