"""Concurrent questions answered in one pass of the network."""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from nngk.gallery import GalleryModel
from nngk.model import Model
from nngk.networks.embed import Rows
from nngk.web.mail import Awaited
from nngk.web.refusals import Busy
from nngk.web.served import Snapshot

Kind = Literal["classify", "search", "embed"]


@dataclass(frozen=True)
class Question:
    """One picture and what is asked about it."""

    kind: Kind
    picture: Any  # what the batcher reads; without a reader uint8 (3, size, size), as the network's centre crop is
    count: int = 0  # images behind the answer, or neighbours
    answer: "Future[Any] | Awaited" = field(default_factory=Future)
    say: Callable[[Snapshot, Any], Any] = lambda snapshot, found: (snapshot, found)  # the answer, in the pass's thread


class Batcher:
    """Threads that each take their share of what is waiting, up to ``at_once``, and ask the model once for each kind.

    Several threads with a pass of one core each are faster than one pass of several cores: none waits for another. For
    the same reason each decodes its own pictures, one after the other, unless there are ``readers`` that do. ``told``
    is called after the answers of a pass, so that those who wait need not be woken one by one.
    """

    def __init__(
        self,
        now: Callable[[], Snapshot],
        *,
        waiting: int,
        at_once: int,
        observe: Callable[[int], object],
        workers: int = 1,
        read: Callable[[Any], Tensor] = lambda picture: picture,
        readers: int = 0,
        told: Callable[[], object] = lambda: None,
    ) -> None:
        self._now, self._at_once, self._observe, self._read, self._told = now, at_once, observe, read, told
        self._readers = ThreadPoolExecutor(readers, "nngk-decode") if readers else None
        self._queue: queue.Queue[Question | None] = queue.Queue(waiting)
        self._threads = [
            threading.Thread(target=self._work, name=f"nngk-batches-{number}", daemon=True) for number in range(workers)
        ]
        for thread in self._threads:
            thread.start()

    def __len__(self) -> int:
        return self._queue.qsize()

    def has_room(self) -> bool:
        """Return whether another question would be answered."""
        return all(thread.is_alive() for thread in self._threads) and not self._queue.full()

    def ask(self, question: Question) -> "Future[Any] | Awaited":
        """Put a question in the queue and return its answer to come. Raise Busy if the queue is full."""
        try:
            self._queue.put_nowait(question)
        except queue.Full:
            raise Busy from None
        return question.answer

    def close(self) -> None:
        """Answer what is waiting, and end the threads."""
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()
        if self._readers is not None:
            self._readers.shutdown()

    def _work(self) -> None:
        going, mine = True, _Own()
        while going:
            taken = self._taken()
            going = None not in taken
            # Who no longer waits is left out.
            asked = [each for each in taken if each is not None and each.answer.set_running_or_notify_cancel()]
            one_by_one = map if self._readers is None else self._readers.map
            seen = [each for each in one_by_one(self._seen, asked) if each is not None]
            for kind in ("classify", "search", "embed"):
                same = [question for question in seen if question.kind == kind]
                if same:
                    self._attempt(same, mine)
                    self._told()
            if len(seen) < len(asked):
                self._told()

    def _seen(self, question: Question) -> Question | None:
        """Return a question with its picture decoded; whoever asks about what is no picture is told."""
        try:
            return replace(question, picture=self._read(question.picture))
        except BaseException as error:  # this thread outlives whatever happens
            question.answer.set_exception(error)
            return None

    def _attempt(self, questions: list[Question], mine: "_Own") -> None:
        try:
            self._observe(len(questions))
            _answer(questions, mine.at(self._now()))
        except BaseException as error:  # this thread outlives whatever happens: nobody else would answer
            for question in questions:
                if not question.answer.done():
                    question.answer.set_exception(RuntimeError(f"The question could not be answered: {error!r}"))

    def _taken(self) -> list[Question | None]:
        """Wait for a question, and return it with a share of those that wait behind it; None is the end."""
        taken = [self._queue.get()]
        share = min(self._at_once, 1 + self._queue.qsize() // len(self._threads))
        while len(taken) < share and taken[-1] is not None:
            try:
                taken.append(self._queue.get_nowait())
            except queue.Empty:
                break
        return taken


class _Own:
    """A thread's own replica of the model: a pass of the network leaves things behind that no other may find."""

    def __init__(self) -> None:
        self._from: Snapshot | None = None
        self._model: Any = None  # a server has models of one kind only

    def at(self, now: Snapshot) -> Snapshot:
        """Return the state ``now`` with a model for this thread alone."""
        if self._from is not now:
            self._model = now.model.replica(self._model)
            self._from, self._mine = now, replace(now, model=self._model)
        return self._mine


def _answer(questions: list[Question], snapshot: Snapshot) -> None:
    """Answer questions of one kind together; where that fails, each alone, so that one bad picture spoils no other."""
    try:
        found = _ask(snapshot.model, questions)
    except Exception as error:
        if len(questions) == 1:
            questions[0].answer.set_exception(error)
        else:
            for question in questions:
                _answer([question], snapshot)
        return
    for question, value in zip(questions, found):
        try:
            question.answer.set_result(question.say(snapshot, value))
        except Exception as error:
            question.answer.set_exception(error)


def _ask(model: Model | GalleryModel, questions: list[Question]) -> list[Any]:
    kind, most = questions[0].kind, max(question.count for question in questions)
    seen = model.described(Rows(torch.stack([question.picture for question in questions])))
    if kind == "classify":
        return list(model.answers(seen.embeddings, most, features=seen.features))
    if kind == "search":  # never more neighbours than there are images
        return list(model.nearest(seen.embeddings, max(1, min(most, model.images))))
    return list(seen.embeddings)
