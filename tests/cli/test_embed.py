"""The command that fills a gallery, and those that read it, in processes of their own."""

import json

import pytest

from nngk.cli import cli
from nngk.errors import InputError
from serving import write_colours, write_model
from shapes import nngk


@pytest.mark.thorough
def test_a_gallery_is_filled_once_and_asked(tmp_path, capsys):
    model = write_model(tmp_path)
    more = write_colours(tmp_path / "more", ("yellow", "violet"), 4)
    gallery = str(tmp_path / "gallery")

    def said(*words):
        cli([str(word) for word in words] + ["--gallery", gallery], standalone_mode=False)
        return capsys.readouterr().out

    first = json.loads(nngk("embed", model, "--gallery", gallery, "--json").stdout)
    assert first == {"gallery": gallery, "added": 36, "already": 0, "images": 36}
    assert json.loads(said("embed", model, more, "--json"))["added"] == 8
    assert "44 images now, 0 of them new. 8 were there already." in said("embed", model, more)
    picture = more / "yellow" / "00.png"
    found = json.loads(said("search", model, picture, "-k", "3", "--json"))
    assert found[0]["found"][0]["image"] == str(picture) and found[0]["found"][0]["label"] == "yellow"
    assert json.loads(said("classify", model, picture, "--json"))[0]["nearest"] == "yellow"


def test_mistakes_are_told_in_a_sentence(tmp_path):
    model = str(write_model(tmp_path))
    picture = str(next((tmp_path / "photos").rglob("*.png")))
    for words, told in (
        (["search", model, picture, "--gallery", str(tmp_path / "none")], "not a gallery"),
        (["search", model, picture, "--gallery", "milvus://here"], "milvus://host:port/name"),
        (["embed", model, str(tmp_path / "photos"), "--gallery", model], "not empty"),
    ):
        with pytest.raises(InputError, match=told):
            cli(words, standalone_mode=False)


@pytest.mark.slow
def test_several_processes_are_started(tmp_path):
    model = write_model(tmp_path)
    gallery = str(tmp_path / "gallery")
    done = nngk("embed", model, tmp_path / "photos", "--gallery", gallery, "--devices", "2", "--json")
    assert json.loads(done.stdout) == {"gallery": gallery, "added": 36, "already": 0, "images": 36}
