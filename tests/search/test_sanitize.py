"""The core under the address and the thread sanitizer."""

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "search" / "sanitize.sh"


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", ["address", "thread"])
def test_no_sanitizer_complains(kind: str) -> None:
    if not shutil.which("c++"):
        pytest.skip("there is no C++ compiler")
    done = subprocess.run(["sh", str(SCRIPT), kind], capture_output=True, text=True, timeout=3000)
    assert done.returncode == 0 and "no wrong answer" in done.stdout, done.stdout + done.stderr
