"""The inputs that a fuzz of the readers kept: each is read or refused with a sentence."""

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CORPUS = sorted((HERE / "corpus").iterdir())


@pytest.fixture(scope="module")
def fuzz():
    sys.path.insert(0, str(HERE))
    try:
        import fuzz_readers

        yield fuzz_readers
    finally:
        sys.path.remove(str(HERE))


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.name)
def test_an_input_is_read_or_refused(fuzz, path):
    fuzz.one_input(path.read_bytes())


def test_a_fault_would_be_seen(fuzz, monkeypatch):
    def broken(name, content):
        raise KeyError(name)

    monkeypatch.setattr(fuzz, "read", broken)
    with pytest.raises(KeyError):
        fuzz.one_input(b"\0")


def test_every_reader_has_an_input_that_it_reads(fuzz):
    read = set()
    for path in CORPUS:
        if path.name.startswith("good-"):
            fuzz.HOME.mkdir(exist_ok=True)
            data = path.read_bytes()
            fuzz.read(fuzz.READERS[data[0]], data[1:])
            read.add(data[0])
    assert read == set(range(len(fuzz.READERS)))
