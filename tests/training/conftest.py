"""Four shapes, ten pictures each, for the tests of training."""

import pytest

from nngk.data import read_images
from shapes import write_shapes


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return read_images(write_shapes(tmp_path_factory.mktemp("shapes"), ("disc", "frame", "cross", "stripes"), count=10))
