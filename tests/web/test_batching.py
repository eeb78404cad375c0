"""Concurrent questions share a pass of the network, and do not spoil each other's answers."""

import threading

import pytest
import torch

from nngk import Model
from nngk.data.decode import fitted
from nngk.errors import InputError
from nngk.networks import create_network
from nngk.networks.input_spec import InputSpec
from nngk.web.batching import Batcher, Question
from nngk.web.refusals import Busy
from nngk.web.served import Snapshot
from serving import coloured


class Held:
    """A batcher whose thread is held at its first pass until it is let go."""

    def __init__(self, model, **options):
        self.sizes, self.begun, self.go = [], threading.Event(), threading.Event()
        settings = {"waiting": 100, "at_once": 32} | options
        self.batcher = Batcher(lambda: Snapshot(model, 1), observe=self.observe, **settings)

    def observe(self, size):
        self.sizes.append(size)
        self.begun.set()
        assert self.go.wait(30)


def picture(colour, number):
    return fitted(coloured(colour, number), 24)


@pytest.fixture(scope="module")
def model(colours):
    return Model.load(colours, "cpu")


def test_what_waits_is_answered_in_one_pass_of_each_kind(model):
    held = Held(model)
    first = held.batcher.ask(Question("embed", picture("red", 0)))
    assert held.begun.wait(30)
    asked = [(c, held.batcher.ask(Question("classify", picture(c, 9), n))) for n, c in enumerate(("red", "blue"))]
    found = held.batcher.ask(Question("search", picture("green", 9), 99))
    held.go.set()
    assert [answer.result(30)[1].label for _, answer in asked] == [colour for colour, _ in asked]
    assert len(found.result(30)[1]) == 36  # never more than there are
    assert held.sizes == [1, 2, 1] and first.result(30)[1].shape == (8,)
    alone = [model.classify(picture(colour, 9), evidence=1).probability for colour, _ in asked]
    assert [answer.result()[1].probability for _, answer in asked] == pytest.approx(alone, rel=1e-4)
    held.batcher.close()


def test_a_pass_has_a_largest_size_and_closing_answers_what_waits(model):
    held = Held(model, at_once=4)
    waiting = [held.batcher.ask(Question("embed", picture("red", n))) for n in range(11)]
    held.go.set()
    held.batcher.close()
    assert all(answer.done() for answer in waiting) and max(held.sizes) <= 4 and sum(held.sizes) == 11
    rows = torch.stack([answer.result()[1] for answer in waiting])
    torch.testing.assert_close(rows, model.embed([picture("red", n) for n in range(11)]), atol=1e-5, rtol=1e-4)


def test_a_full_queue_says_so(model):
    held = Held(model, waiting=2)
    held.batcher.ask(Question("embed", picture("red", 0)))
    assert held.begun.wait(30)
    later = [held.batcher.ask(Question("embed", picture("red", 0))) for _ in range(2)]
    assert not held.batcher.has_room()
    with pytest.raises(Busy):
        held.batcher.ask(Question("embed", picture("red", 0)))
    held.go.set()
    assert [answer.result(30)[1].shape for answer in later] == [(8,), (8,)]
    assert held.batcher.has_room()
    held.batcher.close()
    assert not held.batcher.has_room()


def test_one_bad_picture_spoils_no_other(model):
    held = Held(model)
    held.batcher.ask(Question("embed", picture("red", 0)))
    assert held.begun.wait(30)
    good = [held.batcher.ask(Question("classify", picture("blue", n), 1)) for n in range(2)]
    bad = held.batcher.ask(Question("classify", torch.zeros(9, 2, 2, 2), 1))
    held.go.set()
    assert [answer.result(30)[1].label for answer in good] == ["blue", "blue"]
    with pytest.raises(InputError, match="shape"):
        bad.result(30)
    held.batcher.close()


def test_one_answer_that_cannot_be_said_spoils_no_other(model):
    held = Held(model)
    held.batcher.ask(Question("embed", picture("red", 0)))
    assert held.begun.wait(30)

    def fail(snapshot, found):
        raise KeyError("on purpose")

    bad = held.batcher.ask(Question("classify", picture("red", 0), 1, say=fail))
    good = held.batcher.ask(Question("classify", picture("blue", 0), 1))
    held.go.set()
    assert good.result(30)[1].label == "blue"
    with pytest.raises(KeyError, match="on purpose") as raised:
        bad.result(30)
    assert raised.traceback[-1].name == "fail"  # the log can say where it was
    held.batcher.close()


@pytest.mark.parametrize("readers", [0, 3])
def test_pictures_are_read_in_the_threads_of_the_passes_or_beside_them(model, readers):
    names = set()

    def read(number):
        names.add(threading.current_thread().name.rstrip("-_0123456789"))
        if number % 5 == 4:
            raise InputError(f"{number} is no picture")
        return picture("blue", number)

    held = Held(model, read=read, readers=readers)
    held.batcher.ask(Question("embed", 0))
    assert held.begun.wait(30)
    asked = [held.batcher.ask(Question("embed", number)) for number in range(20)]
    gone = held.batcher.ask(Question("embed", "never read"))
    assert gone.cancel()
    held.go.set()
    held.batcher.close()
    for number, answer in enumerate(asked):
        if number % 5 == 4:
            with pytest.raises(InputError, match=f"^{number} is no picture$"):
                answer.result()
        else:
            torch.testing.assert_close(
                answer.result()[1], model.embed(picture("blue", number))[0], atol=1e-5, rtol=1e-4
            )
    assert held.sizes == [1, 16] and names == {"nngk-decode" if readers else "nngk-batches"}


def test_who_no_longer_waits_costs_nothing(model):
    held = Held(model)
    held.batcher.ask(Question("embed", picture("red", 0)))
    assert held.begun.wait(30)
    gone = held.batcher.ask(Question("classify", picture("red", 1), 1))
    assert gone.cancel()
    held.go.set()
    held.batcher.close()
    assert held.sizes == [1]


@pytest.mark.parametrize("fault", [SystemExit, MemoryError])
def test_a_thread_that_fails_answers_and_goes_on(model, fault):
    faults = [fault("on purpose")]

    def observe(size):
        if faults:
            raise faults.pop()

    batcher = Batcher(lambda: Snapshot(model, 1), waiting=9, at_once=4, observe=observe)
    with pytest.raises(RuntimeError, match="on purpose"):
        batcher.ask(Question("embed", picture("red", 0))).result(30)
    assert batcher.ask(Question("embed", picture("red", 0))).result(30)[1].shape == (8,)
    batcher.close()


@pytest.mark.thorough
def test_threads_side_by_side_do_not_find_each_others_maps():
    """The default network keeps maps of a pass: each thread has a replica, which shares every weight."""
    network = create_network("efficientnet-lite0", weights="random", dim=8, layers=2)
    network.input = InputSpec.from_config({**network.input.to_config(), "size": 48, "resize": 48})
    none = torch.empty(0)
    blank = Model(
        network, centres=none.view(0, 8), labels=none.long(), theta=none, sigma=1.0, class_names=[], sources=[],
        familiar=none, device="cpu",
    )  # fmt: skip
    pictures = [fitted(coloured("red", n, 60), 48) for n in range(12)]
    expected = blank.embed(pictures)
    assert not blank.network.training  # its mode is put back
    batcher = Batcher(lambda: snapshot, waiting=200, at_once=3, observe=lambda size: None, workers=4)
    snapshot = Snapshot(blank, 1)
    asked = [batcher.ask(Question("embed", pictures[n % 12])) for n in range(60)]
    for n, answer in enumerate(asked):
        torch.testing.assert_close(answer.result(60)[1], expected[n % 12], rtol=1e-3, atol=1e-4)
    batcher.close()
    other = blank.replica().network
    assert all(a is b for a, b in zip(other.parameters(), blank.network.parameters()))


def test_a_thread_keeps_its_network_as_long_as_the_weights_are_the_same(colours):
    model = Model.load(colours, "cpu")
    first = model.replica()
    assert first.network is not model.network
    model.rename("red", "crimson")
    after = model.replica(first)
    assert after.network is first.network and "crimson" in after.class_names and after.classes is model.classes
    again = Model.load(colours, "cpu")
    assert again.replica(first).network is not first.network
