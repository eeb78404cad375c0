"""Tests of Triton kernels on the CPU.

The interpreter has to be chosen before Triton is imported, so all such tests run in one process of their own, which
``test_interpreter.py`` starts, and they are skipped everywhere else. To run a single file of them:
``TRITON_INTERPRET=1 pytest -n 0 -m interpreted FILE``.
"""

import os

import pytest

_INSIDE = os.environ.get("TRITON_INTERPRET") == "1"


def interpreted(test):
    """Let a test run in the interpreter only."""
    return pytest.mark.interpreted(pytest.mark.skipif(not _INSIDE, reason="runs inside test_interpreter.py")(test))
