"""What a person sees first: help that is instant, fits on a screen and speaks in sentences."""

import re
import subprocess
import sys
import time
from dataclasses import fields
from pathlib import Path

import click
import pytest

from nngk.cli import COMMANDS, cli
from nngk.cli.reference import reference
from nngk.cli.settings_options import Chosen, settings_options
from nngk.training.fields import about
from nngk.training.presets import PRESETS
from nngk.training.settings import GROUPS, Settings
from shapes import command, environment, nngk

SCREEN = 50  # lines of 80 columns
DOCS = Path(__file__).parents[2] / "docs"


def every_command():
    """Yield the words and the object of every command."""
    waiting = [((), cli)]
    while waiting:
        words, found = waiting.pop(0)
        yield words, found
        if isinstance(found, click.Group):
            with click.Context(found) as ctx:
                waiting += [((*words, name), found.get_command(ctx, name)) for name in found.list_commands(ctx)]


EVERY = dict(every_command())


def help_of(*words, columns=80):
    lines = {**environment(), "COLUMNS": str(columns)}
    done = subprocess.run(command(*words), env=lines, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def seconds(*words):
    started = time.perf_counter()
    done = subprocess.run(words, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return time.perf_counter() - started


@pytest.mark.thorough
def test_help_is_instant():
    """Beside what a command that computes must load, in the same run."""
    heavy = seconds(sys.executable, "-c", "import torch")
    assert min(seconds(*command("--help")) for _ in range(3)) < heavy / 2
    assert min(seconds(*command("train", "--help")) for _ in range(3)) < heavy / 2


def test_the_commands_are_all_there():
    listed = help_of("--help")
    assert all(f"  {name} " in listed for name in COMMANDS)
    assert len(EVERY) > 15
    assert {("train",), ("paper", "run"), ("data", "pack"), ("bench", "search")} <= set(EVERY)


@pytest.mark.parametrize("words", EVERY, ids=lambda words: " ".join(words) or "nngk")
@pytest.mark.thorough
def test_every_help_fits_on_a_screen(words):
    lines = help_of(*words, "--help").splitlines()
    assert len(lines) <= SCREEN and max(map(len, lines)) <= 100  # an example may be wider
    assert not any(line.endswith("...") for line in lines[1:]), "a sentence that is cut"


@pytest.mark.parametrize("words", EVERY, ids=lambda words: " ".join(words) or "nngk")
def test_every_option_is_a_sentence(words):
    for option in EVERY[words].params:
        if isinstance(option, click.Option):
            # A default, or a range, may follow in brackets.
            text = re.sub(r"  \[[^\]]*\]$", "", option.help or "")
            assert text[:1].isupper() and text.endswith(".") and len(text.split()) >= 3, (option.name, text)
            brief = re.sub(r"  \[[^\]]*\]$", "", getattr(option, "brief", "") or text)
            assert text.startswith(brief.removesuffix(".")) and brief.endswith("."), (option.name, brief)
    assert (EVERY[words].help or "").strip()[0].isupper()


def test_research_options_are_in_the_long_help_in_groups():
    short, long = help_of("train", "--help"), help_of("train", "--help-all")
    for field in fields(Settings):
        told, name = about(field), field.name.replace("_", "-")
        shown = re.compile(rf"^  --(\[no-\])?{name}\b", re.MULTILINE)
        assert shown.search(long) and bool(shown.search(short)) == told.everyday
    places = [long.index(f"\n{group}:\n") for group in GROUPS]
    assert places == sorted(places) and "--help-all" in short and "--tensorboard" in long
    assert "--tensorboard" not in short


def test_words_ranges_defaults_and_presets_are_shown():
    long = " ".join(help_of("train", "--help-all", columns=200).split())
    assert "--sigma NUMBER|auto|validation|learned" in long and "--weights SOURCE" in long
    assert "--dim N|none" in long and "--update-interval EPOCHS|'N steps'" in long
    assert "[default: 0.2; from 0 to below 1]" in long and "[default: auto; at least 1, or 0 for auto]" in long
    assert all(f"({name})" in long for name in PRESETS)
    assert "[default: classify]" in long
    assert "[default: metric]" in " ".join(help_of("compare", "--help").split())


@pytest.mark.parametrize(
    "line",
    ["--help", "train --help", "train --help-all", "compare --help-all", "--version", "nonsense", "train --bogus"]
    + [" ".join([*words, "--help"]) for words in EVERY if words and words != ("train",)],
)
@pytest.mark.thorough
def test_nothing_heavy_is_imported_for_it(line):
    program = (
        "import sys; from nngk.cli import main\n"
        f"sys.argv = ['nngk', *{line.split()!r}]\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'numpy', 'PIL', 'timm', 'rich'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_version():
    import nngk as package

    done = nngk("--version")
    assert done.returncode == 0 and package.__version__ in done.stdout


def test_the_reference_page_is_up_to_date():
    written = (DOCS / "reference.md").read_text(encoding="utf-8")
    assert written == reference(), "run: python -m nngk.cli.reference docs/reference.md"
    for field in fields(Settings):
        assert f"| `{field.name}` |" in written
    leaves = [words for words, found in EVERY.items() if not isinstance(found, click.Group)]
    assert all(f"### nngk {' '.join(words)}\n" in written for words in leaves)


def test_what_is_not_given_stays_out():
    seen = {}

    @click.command()
    @settings_options()
    def probe(preset, config, **options):
        seen.update(Chosen(preset, config, options).values)

    words = "--epochs 3 --dim none --sigma 0.5 --update-interval 50 --no-flip --n-neighbours 7 --wide auto --lr 1e-3"
    probe(words.split(), standalone_mode=False)
    assert seen == {
        "epochs": 3,
        "dim": "none",
        "sigma": 0.5,
        "update_interval": 50.0,
        "flip": False,
        "n_neighbours": 7,
        "wide": "auto",
        "lr": 1e-3,
    }
    settings = Settings.from_dict(seen)
    assert (settings.dim, settings.wide, settings.sigma, settings.flip) == (None, None, 0.5, False)
    seen.clear()
    probe(["--update-interval", "2 steps", "--sigma", "learned"], standalone_mode=False)
    assert seen == {"update_interval": "2 steps", "sigma": "learned"}
