"""The index files that a fuzz of the compiled reader kept: each is refused with a sentence, or works."""

import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from faults import survived
from index_files import CHECKSUM_AT, File
from nngk.errors import InputError
from nngk.search import FANNG
from nngk.search.native import core

HERE = Path(__file__).parent
CORPUS = sorted((HERE / "native").iterdir())


def loaded(path: Path, place: Path) -> FANNG:
    """Return the index of an input, whose first byte says whether its checksums are made right."""
    data = path.read_bytes()
    sealed = data[0] % 2 and len(data) > CHECKSUM_AT + 8
    place.write_bytes(File(data[1:]).sealed() if sealed else data[1:])
    return FANNG.load(place, threads=1)


def use(engine: FANNG) -> None:
    x = torch.linspace(-1, 1, 2 * engine.dim).view(2, -1)
    if len(engine):
        engine.search(x, 1, ef=8)
    engine.remove(engine.add(x)[:1])
    engine.all_neighbours(1, ef=8)
    engine.update(torch.full((len(engine), engine.dim), 0.5))
    engine.search(x, 1, ef=8)


@pytest.mark.skipif(core() is None, reason="the compiled core is not built")
def test_an_input_is_used_or_refused(tmp_path: Path) -> None:
    used = []

    def replay() -> None:
        for path in CORPUS:
            try:
                engine = loaded(path, tmp_path / "index")
            except InputError:
                assert not path.name.startswith("good-"), path.name
                continue
            used.append(path.name)
            use(engine)
        assert len(CORPUS) > len(used) >= 5

    assert survived(replay)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_no_sanitizer_complains_about_an_input(tmp_path: Path) -> None:
    if not shutil.which("clang++"):
        pytest.skip("there is no clang++, which brings libFuzzer")
    script = HERE / "fuzz_file.sh"
    done = subprocess.run(["sh", str(script), str(tmp_path / "work"), "-runs=0"], capture_output=True, text=True)
    assert done.returncode == 0 and f"{len(CORPUS)} files" in done.stderr, (done.stdout + done.stderr)[-3000:]
