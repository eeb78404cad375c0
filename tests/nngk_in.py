"""Be the command line of nngk, computing in the type that comes first: ``python nngk_in.py float64 train photos/``."""

import sys

import torch

from nngk.cli import main

if __name__ == "__main__":
    torch.set_default_dtype(getattr(torch, sys.argv.pop(1)))
    main()
