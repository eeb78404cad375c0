"""One photo, asked about from the command line: hardly longer than PyTorch takes to import."""

import resource
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from nngk.model.model import Model
from nngk.networks import create_network
from shapes import command, environment

MOST = 2.5  # times the import of PyTorch; about 1.3 where nothing else is at work


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    """A model of the default network, and a photo."""
    home = tmp_path_factory.mktemp("startup")
    torch.manual_seed(0)
    network = create_network(weights="random")
    Model(
        network,
        centres=torch.nn.functional.normalize(torch.randn(20, network.dim)),
        labels=torch.arange(20) % 2,
        theta=torch.zeros(20),
        sigma=0.3,
        class_names=["a", "b"],
        sources=[f"{i}.png" for i in range(20)],
        device="cpu",
    ).save(home / "model")
    Image.fromarray(np.zeros((300, 400, 3), np.uint8)).save(home / "photo.jpg")
    return command("classify", home / "model", home / "photo.jpg", "--device", "cpu")


def processor_seconds(words):
    """Seconds of the processor that a process takes, whatever else the machine is doing."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(words, env=environment(), capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.mark.thorough
def test_one_photo_takes_little_longer_than_pytorchs_import(asked):
    torch_alone = [sys.executable, "-c", "import torch"]
    processor_seconds(asked), processor_seconds(torch_alone)  # both from a warm disk
    assert processor_seconds(asked) < MOST * processor_seconds(torch_alone)


@pytest.mark.thorough
def test_classifying_imports_nothing_that_it_does_not_need(asked):
    code = (
        "import sys\nfrom nngk import cli\n"
        f"sys.argv = ['nngk', *{asked[3:]!r}]\ncli.main()\n"
        "heavy = {'timm', 'torchvision', 'scipy', 'sklearn', 'sympy', 'torch._dynamo'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
