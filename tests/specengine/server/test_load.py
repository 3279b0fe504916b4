"""Queue, slots, disconnects, failures and the end of a server."""

import asyncio
import contextlib
import os
import signal

import pytest
import torch

BODY = {"prompt": [3, 9, 17], "max_tokens": 30, "ignore_eos": True, "return_token_ids": True}


def _send(served, body=BODY, status=200):
    return asyncio.create_task(served.post("/v1/completions", body, status=status))


def test_a_full_queue_answers_429(serving, gate_of):
    async def play():
        async with serving(slots=1, max_queue=2) as served:
            gate = gate_of(served)
            scheduler = served.service.scheduler
            tasks = [_send(served) for _ in range(3)]
            await served.until(lambda: (scheduler.running, scheduler.waiting) == (1, 2))
            error = await served.post("/v1/completions", BODY, status=429)
            assert error["error"]["code"] == "queue_full"
            busy = await served.post("/flush", {}, status=409)
            assert busy["error"]["message"].startswith("3 requests")
            gate.open()
            answers = await asyncio.gather(*tasks)
            assert len({tuple(a["choices"][0]["token_ids"]) for a in answers}) == 1
            assert scheduler.rejected == 1
            await served.post("/v1/completions", BODY)

    asyncio.run(play())


def test_slots_take_turns(serving, gate_of):
    async def play():
        async with serving(slots=2) as served:
            gate = gate_of(served)
            scheduler = served.service.scheduler
            tasks = [_send(served)]
            await served.until(lambda: scheduler.running == 1)
            tasks.append(_send(served, {**BODY, "max_tokens": 3}))
            await served.until(lambda: scheduler.waiting == 1)
            # The short one ends although the long one, which came first, has long to go.
            gate.let(8)
            await tasks[1]
            assert not tasks[0].done()
            gate.open()
            await tasks[0]

    asyncio.run(play())


@pytest.mark.parametrize("stream", [False, True])
def test_a_disconnect_frees_the_slot(serving, gate_of, stream):
    async def play():
        async with serving() as served:
            gate = gate_of(served)
            scheduler = served.service.scheduler
            gone = _send(served, {**BODY, "max_tokens": 200, "stream": stream})
            await served.until(lambda: scheduler.running == 1)
            if stream:
                gate.let(3)
                await served.until(lambda: gate.passes == 3)
            next_one = _send(served)
            await served.until(lambda: scheduler.waiting == 1)
            gone.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await gone
            await asyncio.sleep(0.05)
            before = gate.passes
            gate.let(1)
            await served.until(lambda: scheduler.waiting == 0)
            assert gate.passes <= before + 1
            gate.open()
            answer = await next_one
            assert len(answer["choices"][0]["token_ids"]) == 30

    asyncio.run(play())


def test_a_waiting_client_that_leaves_frees_its_place(serving, gate_of):
    async def play():
        async with serving(slots=1, max_queue=1) as served:
            gate = gate_of(served)
            scheduler = served.service.scheduler
            first, second = _send(served), _send(served)
            await served.until(lambda: (scheduler.running, scheduler.waiting) == (1, 1))
            second.cancel()
            await served.until(lambda: scheduler.waiting == 0)
            third = _send(served)
            await served.until(lambda: scheduler.waiting == 1)
            gate.open()
            await asyncio.gather(first, third)

    asyncio.run(play())


def test_a_call_whose_client_left_ends(serving, gate_of):
    async def play():
        async with serving() as served:
            gate = gate_of(served)
            body = {"prompt_token_ids": [3, 9], "max_tokens": 200}
            call = asyncio.create_task(served.post("/profile", body))
            await served.until(lambda: served.service.scheduler.running == 1)
            gate.let(3)
            await served.until(lambda: gate.passes == 3)
            call.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await call
            await asyncio.sleep(0.05)
            gate.open()
            await served.until(lambda: served.service.scheduler.running == 0)
            assert gate.passes < 60

    asyncio.run(play())


@pytest.mark.parametrize("stream", [False, True])
def test_a_failed_request_answers_and_the_server_goes_on(serving, stream):
    async def play():
        async with serving() as served:
            clean = await served.post("/v1/completions", BODY)
            target = served.service.engine.target
            head, calls = target.logits, []

            def poisoned(hidden):
                calls.append(1)
                return head(hidden) * (float("nan") if len(calls) == 4 else 1.0)

            target.logits = poisoned
            if stream:
                events = await served.events("/v1/completions", BODY)
                assert "non-finite" in events[-1]["error"]["message"]
                assert len(events) == 4
            else:
                error = (await served.post("/v1/completions", BODY, status=500))["error"]
                assert error["code"] == "NumericError" and "logits" in error["message"]
            again = await served.post("/v1/completions", BODY)
            assert again["choices"] == clean["choices"]

            def exhausted(hidden):
                raise torch.OutOfMemoryError("no memory left\nwith a second line")

            target.logits = exhausted
            error = (await served.post("/v1/completions", BODY, status=500))["error"]
            assert error["message"] == "no memory left"
            target.logits = head
            assert (await served.post("/v1/completions", BODY))["choices"] == clean["choices"]

    asyncio.run(play())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_defect_answers_and_ends_the_server(serving):
    async def play():
        async with serving() as served:

            def defect(hidden):
                raise ZeroDivisionError

            served.service.engine.target.logits = defect
            error = await served.post("/v1/completions", BODY, status=503)
            assert error["error"]["code"] == "ended"
            async with asyncio.timeout(120):
                await served.task
            assert served.server.crashed

    asyncio.run(play())


def test_sigterm_finishes_what_runs_and_refuses_what_waits(serving, gate_of):
    async def play():
        async with serving() as served:
            gate = gate_of(served)
            scheduler = served.service.scheduler
            running = asyncio.create_task(served.events("/v1/completions", BODY))
            await served.until(lambda: scheduler.running == 1)
            waiting = _send(served, status=503)
            await served.until(lambda: scheduler.waiting == 1)
            gate.let(2)
            os.kill(os.getpid(), signal.SIGTERM)
            assert (await waiting)["error"]["code"] == "shutting_down"
            assert not running.done()
            gate.open()
            events = await running
            ids = [token for e in events for token in e["choices"][0]["token_ids"]]
            assert len(ids) == 30
            async with asyncio.timeout(120):
                await served.task
            assert scheduler.failed_at_close == 0 and not served.server.force_exit

    asyncio.run(play())


def test_a_second_sigterm_ends_at_once(serving, gate_of):
    async def play():
        async with serving() as served:
            gate = gate_of(served)
            scheduler = served.service.scheduler
            running = _send(served)
            await served.until(lambda: scheduler.running == 1)
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(0.05)
            assert not served.task.done()
            os.kill(os.getpid(), signal.SIGTERM)
            async with asyncio.timeout(120):
                await served.task
            assert served.server.force_exit
            running.cancel()
            gate.let(1)
            assert scheduler.close(30)
            assert scheduler.failed_at_close == 1

    asyncio.run(play())
