"""What engines take from users, and what they say to the rest."""

import threading
from typing import Any

import numpy as np
import pytest
import torch

from nngk.errors import InputError
from nngk.search import FANNG, Engine, Exact, create_engine
from nngk.search import native as native_module
from nngk.search.native import core

needs_core = pytest.mark.skipif(core() is None, reason="the compiled core is not built")
NAMES = ["exact", *(["fanng"] if core() is not None else []), "faiss-flat", "hnswlib"]


def engine(name: str) -> Engine:
    if name not in ("exact", "fanng"):
        pytest.importorskip(name.partition("-")[0])
    made = create_engine(name, dim=3, threads=1)
    made.add(torch.arange(60.0).reshape(20, 3))
    return made


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "x",
    [
        np.array([[0.0, 1.0, 2.1]]),
        np.array([[0.0, 1.0, 2.1]], ">f8"),
        np.array([[0, 1, 2]]),
        np.array([[0.0, 1.0, 2.1]], "f2"),
        np.array([[2.1, 1.0, 0.0]])[:, ::-1],
        np.broadcast_to(np.float32(1.0), (1, 3)),  # read-only
        torch.tensor([[0, 1, 2]]),
        torch.tensor([[0.0, 1.0, 2.1]], dtype=torch.float64),
        torch.zeros(1, 6)[:, ::2],
    ],
)
def test_arrays_and_tensors_of_any_kind(name: str, x: Any) -> None:
    made = engine(name)
    d, i = made.search(x, 2)
    assert isinstance(d, torch.Tensor) and i[0].tolist() == [0, 1]
    assert made.add(x).tolist() == [20]
    made.update(np.arange(63).reshape(21, 3))
    assert made.search(np.array([[60.0, 61.0, 62.0]]), 1)[1].item() == 20


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("k", [2.0, 0, -3, True, None, "2", 21, 10**7, 10**30, np.float32(2)])
def test_k_is_a_whole_number_up_to_the_number_of_points(name: str, k: Any) -> None:
    made = engine(name)
    for ask in (lambda: made.search(torch.zeros(1, 3), k), lambda: made.all_neighbours(k)):
        with pytest.raises(InputError, match="k must be"):
            ask()
    assert made.search(torch.zeros(1, 3), np.int64(20))[1].shape == (1, 20)  # type: ignore[arg-type]
    assert (made.all_neighbours(20)[1][:, 19] == -1).all()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("x", "words"),
    [
        ([[0.0, 0.0, 0.0]], "tensor or a numpy array, got list"),
        (None, "got NoneType"),
        (np.array([["a", "b", "c"]]), "array of numbers"),
        (np.array([[1j, 0, 0]]), "array of numbers"),
        (np.array([[object(), 0, 0]]), "array of numbers"),
        (torch.zeros(1, 3, dtype=torch.complex64), "real numbers"),
        (torch.zeros(1, 3).to_sparse(), "dense"),
        (np.array([[np.nan, 0, 0]]), "NaN or infinity, first in row 0"),
        (torch.tensor([[0.0, 0.0, 0.0], [0.0, -torch.inf, 0.0]]), "infinity, first in row 1"),
        (torch.full((1, 3), 1e25), "more than .*divide"),
        (np.zeros((1, 1, 3)), "shape"),
    ],
)
def test_other_points_and_queries_get_sentences(name: str, x: Any, words: str) -> None:
    made = engine(name)
    for ask in (lambda: made.search(x, 1), lambda: made.add(x)):
        with pytest.raises(InputError, match=words):
            ask()
    assert len(made) == 20


@needs_core
def test_half_precision_ends_at_65504() -> None:
    with pytest.raises(InputError, match=r"more than 6\.55e\+04"):
        FANNG(2, storage="float16").add(torch.full((1, 2), 70000.0))
    # In double precision distances of such points are right.
    far = Exact(torch.tensor([[1e25], [2e25]], dtype=torch.float64))
    assert far.all_neighbours(1)[0].tolist() == [pytest.approx([1e50])] * 2


@needs_core
@pytest.mark.parametrize(
    "options",
    [
        {"dim": 8.0},
        {"dim": "8"},
        {"degree": 16.5},
        {"alpha": "1.1"},
        {"alpha": float("nan")},
        {"recall": None},
        {"seed": -1},
        {"neighbours": True},
        {"walk_rounds": 2.5},
        {"threads": 1.5},
        {"threads": 0},
    ],
)
def test_settings_of_the_wrong_type(options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=f"{next(iter(options))} must be"):
        FANNG(**({"dim": 8} | options))


@needs_core
@pytest.mark.parametrize("how", [{"ef": 2.5}, {"ef": "9"}, {"budget": 1.5}, {"recall": "high"}, {"recall": 0}])
def test_efforts_of_the_wrong_type(how: dict[str, Any]) -> None:
    made = engine("fanng")
    for ask in (lambda: made.search(torch.zeros(1, 3), 1, **how), lambda: made.all_neighbours(1, **how)):
        with pytest.raises(InputError, match=f"{next(iter(how))} must be"):
            ask()


@needs_core
@pytest.mark.parametrize("ids", [[1.5], torch.tensor([0.0]), ["a"], None, [True], [[0, 1], [2]], [10**30]])
def test_ids_of_the_wrong_type(ids: Any) -> None:
    made = engine("fanng")
    assert isinstance(made, FANNG)
    for ask in (made.remove, made.vectors):
        with pytest.raises(InputError, match="whole numbers"):
            ask(ids)
    assert len(made) == 20
    made.remove(np.array([3, 4], dtype=np.int32))
    assert len(made) == 18


@needs_core
@pytest.mark.parametrize("wanted", ["avx1024", "AVX2", "none"])
def test_unknown_kernels_are_said(wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NNGK_KERNELS", wanted)
    for ask in (lambda: FANNG(3), lambda: Exact(torch.zeros(2, 2)).search(torch.zeros(1, 2), 1)):
        with pytest.raises(InputError, match=rf"NNGK_KERNELS asks for '{wanted}'.*runs plain"):
            ask()


@needs_core
def test_kernels_that_the_processor_lacks_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    native = core()
    lacking = [name for name in native_module.KERNELS if not native.has_kernels(name)]  # type: ignore[union-attr]
    for name in lacking:
        monkeypatch.setenv("NNGK_KERNELS", name)
        with pytest.raises(InputError, match="This processor runs"):
            core()
    monkeypatch.setenv("NNGK_KERNELS", "")
    assert core() is native


@needs_core
def test_all_neighbours_beside_changes() -> None:
    made = FANNG(8, threads=1)
    made.build(torch.randn(800, 8, generator=torch.Generator().manual_seed(0)))
    failures: list[BaseException] = []
    done = threading.Event()

    def read(**how: Any) -> None:
        try:
            while not done.is_set():
                d, i = made.all_neighbours(3, **how)
                assert d.shape == i.shape and i.shape[0] >= 800
                made.search(torch.zeros(2, 8), 3)
        except BaseException as error:
            failures.append(error)

    readers = [threading.Thread(target=read, kwargs=how) for how in ({}, {"ef": 8}, {"recall": 0.9})]
    for reader in readers:
        reader.start()
    generator = torch.Generator().manual_seed(1)
    for step in range(25):
        made.add(torch.randn(5, 8, generator=generator))
        made.remove([step])
    done.set()
    for reader in readers:
        reader.join()
    assert not failures, failures[0]
