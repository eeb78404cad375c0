"""Threads that have a number of PyTorch's threads of their own.

Those that compute beside others on the same cores should have one: with more, each operation waits until the others
give way, and then PyTorch's threads go on looking for work for a while, on a core that somebody else could use.
"""

import threading
from concurrent.futures import ThreadPoolExecutor

import torch

_starting = threading.Lock()  # held by the one who starts workers: meanwhile PyTorch's number of threads is theirs


def threads_here() -> int:
    """Return how many of PyTorch's threads the thread that asks has.

    One that first asked while another starts workers would keep their number.
    """
    with _starting:
        return torch.get_num_threads()


def workers_with(workers: int, threads: int) -> ThreadPoolExecutor:
    """Return a pool whose workers, and they alone, have ``threads`` of PyTorch's threads each.

    A thread takes the number of the process when it first asks for it, and keeps it; whoever sets a number sets that
    of the process and its own. So a thread of its own lowers the number for the moment in which all workers ask.
    """
    pool, met = ThreadPoolExecutor(workers, "nngk-worker"), threading.Barrier(workers + 1)

    def ask() -> None:
        met.wait()  # so that each of them falls to another worker
        torch.get_num_threads()
        met.wait()

    def lower() -> None:
        usual = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            met.wait()
            met.wait()
        finally:
            torch.set_num_threads(usual)

    with _starting:
        try:
            for _ in range(workers):
                pool.submit(ask)
            with ThreadPoolExecutor(1, "nngk-worker") as other:
                other.submit(lower).result()
        except BaseException:  # such as where the system has no more threads
            met.abort()
            pool.shutdown(cancel_futures=True)
            raise
    return pool
