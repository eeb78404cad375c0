"""Let a quick run launch Triton's kernels on the CPU.

The interpreter has to be chosen before Triton is imported, so this module is imported before those of nngk.
"""

import os
import sys

if "--quick" in sys.argv:
    os.environ["TRITON_INTERPRET"] = "1"
