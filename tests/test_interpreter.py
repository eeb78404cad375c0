"""All tests of Triton kernels, in Triton's interpreter on the CPU."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent


@pytest.mark.parametrize(
    "which", [pytest.param("not slow", marks=pytest.mark.thorough), pytest.param("slow", marks=pytest.mark.slow)]
)
def test_kernels_in_the_interpreter(which):
    pytest.importorskip("triton")
    files = sorted(
        str(path) for path in TESTS.rglob("test_*.py") if "\n@interpreted\n" in path.read_text(encoding="utf-8")
    )
    words = ["-n", "0", "-vv", "-p", "no:cacheprovider", "-m", f"interpreted and {which}", *files]
    surroundings = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words], env=surroundings, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stdout + done.stderr
    ran = set(re.findall(r"^(\S+\.py)::\S+.* PASSED", done.stdout, re.MULTILINE))
    assert ran and (which == "slow" or len(ran) == len(files) >= 4)
