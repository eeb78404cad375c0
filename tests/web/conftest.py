"""One model for all tests of the room, and copies of it for those that change it."""

import shutil

import pytest

from serving import serving, write_model


@pytest.fixture(scope="session")
def colours(tmp_path_factory):
    """The folder of a model that knows red, green and blue; it is not to be changed."""
    return write_model(tmp_path_factory.mktemp("colours"))


@pytest.fixture
def folder(colours, tmp_path):
    """A copy of the model, to be changed."""
    return shutil.copytree(colours, tmp_path / "model")


@pytest.fixture(scope="module")
def server(colours, tmp_path_factory):
    """A server that the tests of a module share."""
    folder = shutil.copytree(colours, tmp_path_factory.mktemp("served") / "model")
    with serving(folder) as running:
        running.folder = folder
        yield running
