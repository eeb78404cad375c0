"""What the command lines of all benchmarks share."""

import argparse
from pathlib import Path

import torch

QUICK = Path("runs/benchmarks-quick")  # rows of a trial are no results


def benchmark_parser(doc: str | None, out: str) -> argparse.ArgumentParser:
    """Return a parser with the options of every benchmark.

    Args:
        doc: the docstring of the script, which is its help.
        out: the CSV file that rows are added to unless ``--out`` names another.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help=f"The CSV file that rows are added to.  [default: {out}]")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--commit", help="The commit of the source, where git is not there to ask.")
    parser.add_argument(
        "--quick", action="store_true", help="Walk through the same code in seconds, on little or generated data."
    )
    parser.set_defaults(usual_out=Path(out))
    return parser


def benchmark_options(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Return the options that were given; a quick run is on the CPU and writes no results unless told to."""
    given = parser.parse_args()
    if given.quick:
        given.device = "cpu"
    given.out = given.out or (QUICK / given.usual_out.name if given.quick else given.usual_out)
    return given


def add_sources(parser: argparse.ArgumentParser) -> None:
    """Add the options that say where CUB-200-2011 and the weights are."""
    parser.add_argument("--data", type=Path, help="The folder that holds CUB-200-2011 or a pack of it.")
    parser.add_argument("--weights", help="The folder of the weights files, or 'imagenet'.")
    parser.add_argument("--cache", type=Path, help="The folder of decoded images.  [default: a temporary one]")
