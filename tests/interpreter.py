"""Tests of Triton kernels on the CPU.

The interpreter has to be chosen before Triton is imported, so such tests run in a process of their own:
``test_in_the_interpreter`` of their file starts it, and they are skipped everywhere else.
"""

import os
import subprocess
import sys

import pytest

INSIDE = os.environ.get("TRITON_INTERPRET") == "1"
interpreted = pytest.mark.skipif(not INSIDE, reason="runs inside test_in_the_interpreter")
outside = pytest.mark.skipif(INSIDE, reason="this is the interpreter")


def run_in_the_interpreter(file: str) -> None:
    """Run a file of tests with Triton's interpreter; its failures are the caller's."""
    pytest.importorskip("triton")
    command = [sys.executable, "-m", "pytest", file, "-n", "0", "-vv", "-p", "no:cacheprovider"]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
