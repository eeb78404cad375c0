"""All tests of Triton kernels, in Triton's interpreter on the CPU."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent


@pytest.mark.thorough
def test_kernels_in_the_interpreter():
    pytest.importorskip("triton")
    files = sorted(str(path) for path in TESTS.rglob("test_*.py") if "@interpreted" in path.read_text(encoding="utf-8"))
    files.remove(__file__)
    words = ["-n", "0", "-vv", "-p", "no:cacheprovider", "-m", "interpreted and not slow", *files]
    surroundings = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words], env=surroundings, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stdout + done.stderr
    ran = set(re.findall(r"^(\S+\.py)::\S+.* PASSED", done.stdout, re.MULTILINE))
    assert len(ran) == len(files) >= 4
