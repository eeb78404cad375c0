"""Losses compared under one protocol."""
