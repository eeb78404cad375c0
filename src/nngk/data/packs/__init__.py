"""Packs: decoded images on disk, written once and read by many runs."""
