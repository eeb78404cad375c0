"""Names of classes, files and folders come from outside: a command prints them without obeying them."""

import pytest
from click.testing import CliRunner
from PIL import Image

from nngk.cli import cli
from nngk.data import check_folder
from shapes import nngk
from small_models import small_model

EVIL = "cat\x1b[2J\x07\nError: none\u202e"
SAFE = "cat\\x1b[2J\\x07\\nError: none\\u202e"


@pytest.fixture
def evil(tmp_path):
    for name in (EVIL, "dog"):
        (tmp_path / EVIL / name).mkdir(parents=True)
        Image.new("RGB", (5, 4)).save(tmp_path / EVIL / name / "1.png")
    (tmp_path / EVIL / EVIL / f"{EVIL}.jpg").write_bytes(b"no picture")
    return tmp_path / EVIL


def harmless(text):
    return not any((ord(c) < 32 and c != "\n") or c in "\x7f\u202e" for c in text) and "\nError: none" not in text


def test_check_prints_no_escapes(evil):
    done = CliRunner().invoke(cli, ["data", "check", str(evil)])
    assert done.exit_code == 1 and SAFE in done.output and harmless(done.output)
    assert harmless(str(check_folder(evil)))


def test_pack_prints_no_escapes(evil, tmp_path):
    (evil / EVIL / f"{EVIL}.jpg").unlink()
    done = CliRunner().invoke(
        cli, ["data", "pack", "folder", str(evil), str(tmp_path / f"{EVIL} packed"), "--size", "8"]
    )
    assert done.exit_code == 0 and SAFE in done.output and harmless(done.output)


@pytest.mark.thorough
def test_what_was_typed_is_not_obeyed():
    for words in ([EVIL], ["info", f"--{EVIL}"], ["data", EVIL], ["train", "x", "--epochs", EVIL]):
        done = nngk(*words)
        assert done.returncode == 2 and harmless(done.stderr) and "Traceback" not in done.stderr, done.stderr


def test_questions_and_changes_print_no_escapes(tmp_path):
    folder = tmp_path / f"{EVIL} model"
    model = small_model()
    model.rename(model.class_names[0], EVIL)
    model.save(folder)
    photo = tmp_path / f"{EVIL}.png"
    Image.new("RGB", (20, 16), "red").save(photo)
    asked = (
        ["classify", str(folder), str(photo)],
        ["search", str(folder), str(photo)],
        ["info", str(folder)],
        ["audit", str(folder), "--no-photos"],
        ["audit", str(folder), "--no-photos", "--csv"],
        ["report", str(folder)],
        ["explain", str(folder), str(photo), "--out", str(tmp_path / f"{EVIL}.html")],
        ["export", str(folder), "--format", "npz", "--out", str(tmp_path / f"{EVIL}.npz")],
        ["embed", str(folder), "--gallery", str(tmp_path / f"{EVIL} gallery")],
        ["add", str(folder), f"{EVIL} again", str(photo), "--yes"],
        ["rename", str(folder), f"{EVIL} again", f"{EVIL} once more"],
        ["merge", str(folder), f"{EVIL} once more", EVIL],
        ["remove", str(folder), EVIL],
    )
    for arguments in asked:
        done = CliRunner().invoke(
            cli, [*arguments, *(["--device", "cpu"] if arguments[0] in ("classify", "add") else [])]
        )
        assert done.exit_code == 0, (arguments, done.output)
        assert SAFE in done.output and harmless(done.output), arguments
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert harmless(page) and SAFE in page


def test_findings_are_nothing_that_a_spreadsheet_would_compute(tmp_path):
    model = small_model()
    for place, name in enumerate(list(model.class_names)):
        model.rename(name, f"={place}+1")
    model.save(tmp_path / "model")
    done = CliRunner().invoke(cli, ["audit", str(tmp_path / "model"), "--no-photos", "--csv"])
    assert done.exit_code == 0 and "'=0+1" in done.output and ",=" not in done.output


def test_the_address_of_a_server_prints_no_escapes(monkeypatch, tmp_path):
    server = pytest.importorskip("nngk.web.server")
    monkeypatch.setattr(server, "serve", lambda model, *, started, **_: started("http://127.0.0.1:8000/"))
    done = CliRunner().invoke(cli, ["serve", str(tmp_path / EVIL)])
    assert done.exit_code == 0 and SAFE in done.output and harmless(done.output)
