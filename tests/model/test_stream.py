"""Answers that come picture by picture."""

import threading

import numpy as np
import torch

from nngk.errors import InputError
from nngk.model import stream
from nngk.model.features import Described


class Asked:
    """A model that tells in which thread it was asked, with how many of PyTorch's threads."""

    class network:
        class input:
            size, resize, squash = 8, 8, False

    def described_parts(self, source):
        for first in range(0, len(source), 2):
            batch = source.batch(range(first, min(first + 2, len(source))))
            means = [batch[i].float().mean().reshape(1) for i in range(len(batch))]
            yield Described(torch.stack(means), torch.empty(0))

    def answers(self, embeddings, evidence, features):
        return [(float(x), torch.get_num_threads(), threading.current_thread()) for x in embeddings]

    def nearest(self, embeddings, k):
        return self.answers(embeddings, k, None)


def test_answers_come_in_order_and_are_composed_beside_those_that_decode():
    """With all of PyTorch's threads each small operation would wait for the cores, and hold them afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        pictures = [np.full((8, 8, 3), value, dtype=np.uint8) for value in (10, 20, 30, 40, 50)]
        pictures[3] = b"no picture"
        for each in (stream.classify_each(Asked(), pictures), stream.search_each(Asked(), pictures, 1)):
            found = list(each)
            assert isinstance(found[3], InputError)
            del found[3]
            assert [(value, threads) for value, threads, _ in found] == [(10, 1), (20, 1), (30, 1), (50, 1)]
            assert not any(thread is threading.current_thread() or thread.is_alive() for _, _, thread in found)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
