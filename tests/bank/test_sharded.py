"""A bank whose rows several ranks hold says what a whole one says, and sends as much as docs/scale.md says."""

import numpy as np
import pytest

from nngk.ranks import Ranks
from nngk.search.native import core
from together import together
from together_work import sharded_facts

FLOAT = INT = 4


def require_same(facts):
    np.testing.assert_array_equal(*facts["lists"])
    np.testing.assert_array_equal(*facts["nearest"])
    np.testing.assert_allclose(*facts["left out"], atol=1e-5)
    assert facts["lonely"][0] == facts["lonely"][1] and facts["recall"] == 1
    for one, other in zip(*facts["loss"]):
        np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.thorough
def test_three_ranks_hold_what_one_does(count=3, m=40, dim=5, k=4, guaranteed=1):
    found = together(count, sharded_facts, m, dim, k, guaranteed)
    assert found[0]["lonely"][0] > m // 2  # most have no member of their class near them: it is on another rank
    for rank, facts in enumerate(found):
        require_same(facts)
        held = [span.stop - span.start for span in (Ranks(rank, count).span(m, r) for r in range(count))]
        assert facts["rows"] == held[rank]
        # Two rings, the second for those without a same-class neighbour: all blocks but the one of the next rank.
        hops = sum(held) - held[(rank + 1) % count]
        assert facts["sent"]["lists"]["ring"] == 2 * hops * dim * FLOAT
        batch = facts["batch"]
        holders = np.bincount([i // held[0] for i in batch], minlength=count)
        assert facts["sent"]["step"]["gather"] == (count - 1) * holders.max() * (k + guaranteed) * INT
        values = len(batch) * (k + guaranteed) + len(batch)  # log kernels, and what the gradient of σ needs
        assert facts["sent"]["step"]["sum"] == pytest.approx(2 * (count - 1) / count * values * FLOAT, abs=1)


@pytest.mark.slow
@pytest.mark.parametrize("m", [4, 5, 9])
def test_a_rank_with_few_rows_or_none(m, count=3):
    found = together(count, sharded_facts, m, 3, 2, 2)
    for facts in found:
        require_same(facts)
    assert found[-1]["rows"] == max(0, m - 2 * -(-m // count))


@pytest.mark.slow
@pytest.mark.skipif(core() is None, reason="the compiled core is not built")
def test_a_graph_for_each_rank_finds_the_neighbours(m=3000):
    for facts in together(2, sharded_facts, m, 16, 20, 1, "fanng"):
        assert facts["recall"] > 0.95
