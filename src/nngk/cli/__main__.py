"""``python -m nngk.cli``."""

from nngk.cli import main

main()
