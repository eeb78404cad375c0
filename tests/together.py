"""Several processes that work together, for tests: started from a server that has imported torch once."""

import multiprocessing
import os
import socket
import traceback

import torch

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["nngk.training.loop", "together_work"])


def together(count, work, *arguments, environment=None, seconds=240, lost=0):
    """Call ``work(*arguments)`` in ``count`` ranks; return what each of them returns, but for the last ``lost``,
    which are killed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    answers = CONTEXT.Queue()
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(count)} | (environment or {})
    ranks = [
        CONTEXT.Process(target=_in_rank, args=(rank, shared, answers, work, arguments), daemon=True)
        for rank in range(count)
    ]
    for process in ranks:
        process.start()
    found = {}
    try:
        for _ in ranks[: count - lost]:
            rank, value, trouble = answers.get(timeout=seconds)
            assert not trouble, f"rank {rank}:\n{trouble}"
            found[rank] = value
    finally:
        for process in ranks:
            process.join(5)
            process.kill()
    return [found[rank] for rank in range(count - lost)]


def _in_rank(rank, shared, answers, work, arguments):
    os.environ.update(shared, RANK=str(rank), LOCAL_RANK=str(rank))
    torch.set_num_threads(1)
    try:
        answers.put((rank, work(*arguments), ""))
    except BaseException:
        answers.put((rank, None, traceback.format_exc()))
