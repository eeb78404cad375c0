"""Old import paths: they give the very modules of the new names, with a warning, and cost nothing."""

import subprocess
import sys
import warnings
from importlib import import_module

import pytest

import forked
import nngk
from nngk.moved import MOVED, install, new_name
from shapes import environment

pytestmark = pytest.mark.filterwarnings("ignore:nngk.* has moved:DeprecationWarning")

# Submodules of moved packages that kept their names.
KEPT = {
    "nngk.rivals.registry": "nngk.losses.registry",
    "nngk.rivals.samplers": "nngk.losses.samplers",
    "nngk.paper.tables": "nngk.experiments.paper.tables",
}


@pytest.fixture
def forget():
    """Forget the modules that were imported under old names."""
    yield
    for name in [name for name in sys.modules if name.startswith("nngk.") and new_name(name)]:
        del sys.modules[name]


@pytest.mark.parametrize(("old", "new"), sorted((MOVED | KEPT).items()))
def test_an_old_name_is_the_new_module(old, new, forget):
    assert new_name(old) == new
    try:
        module = import_module(new)
    except ModuleNotFoundError as error:
        assert not str(error.name).startswith("nngk"), error
        pytest.skip(f"{new} needs {error.name}")
    with pytest.warns(DeprecationWarning, match=f"{old} has moved: import {new} instead"):
        assert import_module(old) is module
    assert module.__name__ == new and module.__spec__.name == new  # as if it had not been asked for by another name
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert import_module(new) is module


@pytest.mark.parametrize("old", MOVED)
def test_no_old_name_hides_something_else(old):
    """Importing a submodule makes it an attribute of its package, which must not replace a function there."""
    package, _, name = old.rpartition(".")
    if package not in MOVED:
        found = getattr(import_module(package), name, None)
        assert found is None or found is import_module(MOVED[old])


@pytest.mark.thorough
def test_a_user_is_told_where_it_was_imported(forget, tmp_path):
    (tmp_path / "mine.py").write_text("x = 1\nfrom nngk.loss import GaussianKernelLoss\nfrom nngk import sigma\n")
    program = "import warnings; warnings.simplefilter('always'); import mine"
    done = forked.run(["-c", program], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "mine.py:2: DeprecationWarning: nngk.loss has moved: import nngk.losses.gaussian instead." in done.stderr
    assert "mine.py:3: DeprecationWarning: nngk.sigma has moved" in done.stderr


def test_nothing_is_loaded_before_it_is_asked_for():
    program = "import sys, nngk; import nngk.moved; assert not {'torch', 'numpy'} & set(sys.modules)"
    program += "\nimport nngk.training.config; assert 'torch' not in sys.modules"
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_what_never_was_is_still_missing(forget):
    with pytest.raises(ModuleNotFoundError, match=r"nngk\.nonsense"):
        import_module("nngk.nonsense")
    with pytest.raises(ModuleNotFoundError):
        import_module("nngk.rivals.nonsense")


def test_the_finder_is_installed_once():
    before = list(sys.meta_path)
    install()
    assert sys.meta_path == before


def test_public_names():
    wanted = "GaussianKernelLoss CentreBank Model KernelClassifier train Settings create_network evaluate read_images"
    for name in [*wanted.split(), "InputError"]:
        assert name in nngk.__all__ and name in dir(nngk) and callable(getattr(nngk, name))
    with pytest.raises(AttributeError, match="no attribute 'Modell'"):
        _ = nngk.Modell
