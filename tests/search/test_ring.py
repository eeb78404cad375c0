"""Blocks that go around are under way while they are searched, both ways of a line at once."""

from types import SimpleNamespace

import torch

from nngk.ranks import Ranks
from nngk.search.ring import blocks


def test_a_block_is_on_its_way_while_it_is_searched():
    said = []

    class Recorded(Ranks):
        def begin_pass_on(self, rows, coming):
            said.append("sent")

            def arrived():
                said.append("waited")
                return rows.new_full((coming, 1), len(said))

            return arrived

    found = []
    for first, block in blocks(torch.zeros(2, 1), 5, Recorded(0, 3)):
        said.append("searched")
        found.append((first, len(block)))
    assert said == ["sent", "searched", "waited", "sent", "searched", "waited", "searched"]
    assert found == [(0, 2), (4, 1), (2, 2)]


def test_a_rank_says_that_it_waits_before_it_sends(monkeypatch):
    """Two ranks have one connection: what is said behind a block is heard when the whole block has arrived."""
    said = []
    fake = SimpleNamespace(irecv="receive", isend="send", P2POp=lambda what, *_: what)
    fake.batch_isend_irecv = lambda steps: said.extend(steps) or []
    monkeypatch.setattr("nngk.ranks.dist", fake)
    assert Ranks(0, 2).pass_on(torch.zeros(3, 4), 2).shape == (2, 4)
    assert said == ["receive", "send"]
    said.clear()
    assert Ranks(0, 2).pass_on(torch.zeros(0, 4), 2).shape == (2, 4)
    assert said == ["receive"]
