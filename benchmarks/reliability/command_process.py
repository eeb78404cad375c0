"""Commands in forked processes, which need not load the packages again."""

import contextlib
import os
import sys
import traceback
from pathlib import Path

from nngk import cli


def process_of(words: list[str], log: Path) -> int:
    """Begin a command whose output goes to a file; return its process, which ends with the command's code."""
    child = os.fork()
    if child:
        return child
    code = 99
    try:
        with log.open("wb", buffering=0) as stream:
            os.dup2(stream.fileno(), 1)
            os.dup2(stream.fileno(), 2)
        sys.argv = ["nngk", *words]
        cli.main()
        code = 0
    except SystemExit as ending:
        code = ending.code if isinstance(ending.code, int) else 98
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
