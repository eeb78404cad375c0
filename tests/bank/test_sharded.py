"""A bank whose rows several ranks hold says what a whole one says, and sends as much as docs/scale.md says."""

import numpy as np
import pytest
import torch

from nngk.ranks import Ranks
from nngk.search import Exact, create_engine
from nngk.search.native import core
from nngk.search.ring import nearer, nothing
from together import together
from together_work import asked_ahead, asked_of_engines, graph_lists, replicated_bytes, sharded_facts

FLOAT = INT = 4
needs_core = pytest.mark.skipif(core() is None, reason="the compiled core is not built")


def require_same(facts):
    np.testing.assert_array_equal(*facts["lists"])
    np.testing.assert_array_equal(*facts["nearest"])
    np.testing.assert_allclose(*facts["left out"], atol=1e-5)
    assert facts["lonely"][0] == facts["lonely"][1] and facts["recall"] == 1
    assert facts["ailments"][0] == facts["ailments"][1]
    for one, other in zip(*facts["loss"]):
        np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.thorough
def test_three_ranks_hold_what_one_does(count=3, m=40, dim=5, k=4, guaranteed=1):
    found = together(count, sharded_facts, m, dim, k, guaranteed)
    assert "reach nobody" in found[0]["ailments"][0][0]
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


@pytest.mark.thorough
def test_lists_that_were_asked_for_ahead_are_those_of_the_present_bank(count=2, m=12, k=4):
    for found, expected, sent in together(count, asked_ahead, m, k):
        for lists, true in zip(found, expected, strict=True):
            np.testing.assert_array_equal(lists, true)
        assert sent[1] == sent[0], "lists that were on their way were asked for again"
        assert sent[2] > sent[1] and sent[4] > sent[3] > 0


@pytest.mark.thorough
def test_a_whole_bank_sends_what_the_formulas_say(count=3, m=40, dim=5, k=4, guaranteed=1, batch=7):
    for sent in together(count, replicated_bytes, m, dim, k, guaranteed, batch):
        others, rows, share = count - 1, -(-m // count), -(-batch // count)
        assert sent["centres"] == {"gather": others * rows * dim * FLOAT}
        lists, counting = others * rows * (k + guaranteed) * 2 * INT, round(2 * others / count * 2 * INT)
        assert sent["lists"] == {"gather": lists, "sum": counting}  # and how many had no same-class neighbour
        assert sent["embeddings"] == {"gather": others * share * dim * FLOAT}
        assert not sent["backward"]  # but DistributedDataParallel adds up every gradient, once
        assert sent["gradients"] == sent["network"]


def test_questions_to_the_engines_of_all_ranks_send_what_the_formula_says(count=3, m=41, dim=5, k=4):
    for rank, (sent, messages) in enumerate(together(count, asked_of_engines, m, dim, k)):
        last = Ranks(0, count).span(m, (rank + 1) % count)  # whose questions come here last, and go no further
        questions = (m - (last.stop - last.start)) * dim * FLOAT
        assert sent == {"ring": questions + m * k * (FLOAT + 2 * INT)}
        assert messages == {"ring": count - 1 + 2 * count}


@pytest.mark.slow
@pytest.mark.parametrize("m", [4, 5, 9])
def test_a_rank_with_few_rows_or_none(m, count=3):
    found = together(count, sharded_facts, m, 3, 2, 2)
    for facts in found:
        require_same(facts)
    assert found[-1]["rows"] == max(0, m - 2 * -(-m // count))


@needs_core
@pytest.mark.thorough
def test_a_graph_for_each_rank_is_the_same_graphs_in_one_process(count=3, dim=12, k=10):
    """Lists by graphs are a function of the rows and of how many parts they are in, not of who holds the parts.

    Where the graphs of all parts miss nothing, they are the lists of one process; a part may have no rows.
    """
    sizes = (4, 50, 900)
    for lists in zip(*together(count, graph_lists, sizes, dim, k)):
        assert all(np.array_equal(one, lists[0]) for one in lists)
        m = len(lists[0])
        points = torch.randn(m, dim, generator=torch.Generator().manual_seed(m))
        exact = Exact(points).all_neighbours(min(k, m - 1))[1].numpy()
        merged = graphs_of_parts(points, min(k, m - 1), count)
        np.testing.assert_array_equal(lists[0], merged)
        if m < 900:
            np.testing.assert_array_equal(lists[0], exact)
        assert np.mean([len(set(a) & set(b)) / len(b) for a, b in zip(lists[0], exact)]) > 0.97


def graphs_of_parts(points, k, count):
    """Search one graph for each part of the points, and take the nearest of what all of them say."""
    m, dim = points.shape
    best = nothing(points, k)
    for rank in range(count):
        span = Ranks(rank, count).span(m)
        part = points[span]
        if not len(part):
            continue
        engine = create_engine("fanng", dim=dim, n=m, k=k)
        engine.add(part)
        squared, found = engine.search(points, min(k, len(part)))
        if len(part) > 1:
            own = engine.all_neighbours(min(k, len(part) - 1))
            squared[span], found[span] = torch.inf, -1
            squared[span, : own[0].shape[1]], found[span, : own[0].shape[1]] = own
        else:
            squared[span] = torch.inf
        best = nearer(*best, squared, torch.where(squared.isinf(), -1, found + span.start))
    return best[1].numpy()


@needs_core
@pytest.mark.slow
def test_a_graph_for_each_rank_finds_the_neighbours(m=3000):
    for facts in together(2, sharded_facts, m, 16, 20, 1, "fanng"):
        assert facts["recall"] > 0.95
