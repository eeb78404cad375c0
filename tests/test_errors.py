"""What is printed of names from outside is one harmless line, and whole numbers are whole."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nngk import progress
from nngk.errors import InputError, printable, whole_number
from shapes import nngk


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Straße 猫 №5", "Straße 猫 №5"),
        ("a\x1b[31mred", "a\\x1b[31mred"),
        ("a\nError: b\r", "a\\nError: b\\r"),
        ("tab\tbell\a", "tab\\tbell\\x07"),
        ("c1\x9b2J", "c1\\x9b2J"),
        ("byte\udc9b2J", "byte\\x9b2J"),
        ("caf\udce9", "caf\udce9"),
        ("abc\u202egpj.exe", "abc\\u202egpj.exe"),
        ("line\u2028line", "line\\u2028line"),
        ("می\u200cخواهم 👩\u200d🌾", "می\u200cخواهم 👩\u200d🌾"),
    ],
)
def test_printable(text, shown):
    assert printable(text) == shown


@settings(max_examples=200)
@given(st.text())
def test_any_text_is_one_line_without_control_characters(text):
    shown = printable(text)
    assert len(shown.splitlines()) <= 1
    assert not any(ord(c) < 32 or 127 <= ord(c) < 160 or c in "\u202d\u202e" for c in shown)


def test_lines_for_a_person_are_harmless(capsys, monkeypatch):
    monkeypatch.setattr(progress, "quiet", False)
    progress.say("reading \x1b]0;title\x07 and\nmore")
    assert capsys.readouterr().err == "reading \\x1b]0;title\\x07 and\\nmore\n"


@pytest.mark.thorough
def test_an_error_of_the_command_line_is_harmless(tmp_path):
    done = nngk("info", tmp_path / "no\x1b[2Jmodel\nhere")
    assert done.returncode == 1 and "\x1b" not in done.stderr and len(done.stderr.splitlines()) == 1
    assert "no\\x1b[2Jmodel\\nhere" in done.stderr


@pytest.mark.parametrize("value", [0, 3, np.int64(2)])
def test_whole_numbers(value):
    assert whole_number("k", value, 0, 3) == value and type(whole_number("k", value, 0, 3)) is int


@pytest.mark.parametrize("value", [-1, 4, 2.0, True, None, "2", float("nan"), [1]])
def test_what_is_no_whole_number(value):
    with pytest.raises(InputError, match=r"k must be .*from 0 to 3, as many as there are; got"):
        whole_number("k", value, 0, 3, "as many as there are")
