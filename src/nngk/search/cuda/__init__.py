"""Exact search on a GPU."""
