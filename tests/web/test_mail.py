"""Answers of threads reach those who wait in an event loop, who are woken once for many."""

import asyncio
import threading

import pytest

from nngk.web.mail import Mail


def test_one_call_wakes_all_who_wait():
    async def ask():
        mail, loop, calls = Mail(), asyncio.get_running_loop(), []
        usual = loop.call_soon_threadsafe
        loop.call_soon_threadsafe = lambda *call: (calls.append(call), usual(*call))
        waiting = [mail.awaited() for _ in range(9)]

        def answer():
            for number, each in enumerate(waiting):
                assert each.set_running_or_notify_cancel() and not each.done()
                each.set_exception(ValueError(number)) if number == 4 else each.set_result(number)
                assert each.done() and not each.future.done()  # until it is delivered
            mail.deliver()

        thread = threading.Thread(target=answer)
        thread.start()
        heard = await asyncio.wait_for(asyncio.gather(*(w.future for w in waiting), return_exceptions=True), 30)
        thread.join()
        return heard, calls

    heard, calls = asyncio.run(ask())
    assert isinstance(heard[4], ValueError) and [n for n in heard if n is not heard[4]] == [0, 1, 2, 3, 5, 6, 7, 8]
    assert len(calls) == 1


def test_who_is_gone_is_passed_over():
    async def ask():
        mail = Mail()
        gone, there = mail.awaited(), mail.awaited()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await gone.future
        assert not gone.set_running_or_notify_cancel() and there.set_running_or_notify_cancel()
        gone.set_result("late")
        there.set_result("in time")
        mail.deliver()
        return await asyncio.wait_for(there.future, 30)

    assert asyncio.run(ask()) == "in time"


def test_mail_for_a_loop_that_has_ended_is_dropped():
    mail = Mail()
    mail.deliver()  # nobody has asked yet

    async def ask():
        return mail.awaited()

    waiting = asyncio.run(ask())
    waiting.set_result("late")
    mail.deliver()
    assert not waiting.future.done()
