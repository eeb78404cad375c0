"""What a process does with the memory that it frees."""

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys, torch
from nngk.device import keep_memory
if sys.argv[1] == "keep":
    keep_memory()
for _ in range(10):  # until there is room for all that is held at a time
    torch.ones(1 << 23)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    torch.ones(1 << 23)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.thorough
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="malloc is not glibc's")
def test_kept_memory_is_not_fetched_again():
    def faults(mode):
        return int(subprocess.check_output([sys.executable, "-c", PROGRAM, mode], text=True))

    assert faults("keep") < 0.1 * faults("give back")
