"""``python -m nngk``."""

from nngk.cli import main

main()
