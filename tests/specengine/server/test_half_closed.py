"""Clients over plain sockets that close one side or both: an answer, or a free slot."""

import asyncio
import json
import socket

import pytest

BODY = {"prompt": [3, 9, 17], "max_tokens": 30, "ignore_eos": True}
KINDS = ("unix", "tcp")


async def _connect(served, kind):
    if kind == "unix":
        return await asyncio.open_unix_connection(served.path)
    return await asyncio.open_connection(*served.address)


def _request(path, body, version="1.1", length=None):
    raw = json.dumps(body).encode()
    head = f"POST {path} HTTP/{version}\r\nHost: a\r\nContent-Length: {length or len(raw)}\r\n\r\n"
    return head.encode() + raw


async def _answers(reader):
    """Status and body of every final answer until the server closes."""
    rest, found = await reader.read(), []
    while rest:
        head, rest = rest.split(b"\r\n\r\n", 1)
        status = int(head.split()[1])
        if status == 100:
            continue
        fields = dict(line.lower().split(b": ") for line in head.split(b"\r\n")[1:])
        size = int(fields.get(b"content-length", len(rest)))
        found.append((status, rest[:size]))
        rest = rest[size:]
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_a_half_closed_client_gets_its_answer(serving, gate_of, kind, version):
    async def play():
        async with serving() as served:
            plain = await served.post("/v1/completions", BODY)
            gate = gate_of(served)
            reader, writer = await _connect(served, kind)
            writer.write(_request("/v1/completions", BODY, version))
            writer.write_eof()
            await served.until(lambda: served.service.scheduler.running == 1)
            # Long enough for the connection to be looked at more than once.
            await asyncio.sleep(0.25)
            gate.open()
            [(status, raw)] = await _answers(reader)
            assert status == 200
            assert json.loads(raw)["choices"] == plain["choices"]
            writer.close()

    asyncio.run(play())


@pytest.mark.parametrize("kind", KINDS)
def test_a_half_closed_client_gets_its_stream(serving, gate_of, kind):
    async def play():
        async with serving() as served:
            gate = gate_of(served)
            reader, writer = await _connect(served, kind)
            writer.write(_request("/v1/completions", BODY | {"stream": True}))
            writer.write_eof()
            gate.let(2)
            await reader.readuntil(b"data: ")
            gate.open()
            assert b"data: [DONE]" in await reader.read()
            writer.close()

    asyncio.run(play())


@pytest.mark.parametrize("kind", KINDS)
def test_all_requests_before_the_end_are_answered(serving, kind):
    async def play():
        async with serving() as served:
            reader, writer = await _connect(served, kind)
            for limit in (3, 4, 5):
                writer.write(_request("/v1/completions", BODY | {"max_tokens": limit}))
            writer.write_eof()
            answers = [json.loads(raw) for _, raw in await _answers(reader)]
            assert [a["usage"]["completion_tokens"] for a in answers] == [3, 4, 5]
            writer.close()

    asyncio.run(play())


async def _lost(served, gate):
    """Wait until the server knows; a stream over TCP learns of it by events that nobody takes."""
    async with asyncio.timeout(120):
        while served.server.server_state.connections:
            if served.service.scheduler.running and gate.passes < 150:
                gate.let(1)
            await asyncio.sleep(0.02)
    # The request that waits on the connection is told in the loop's next rounds.
    await asyncio.sleep(0.05)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("first", ["nothing", "half", "stream", "call"])
def test_a_client_that_is_gone_frees_its_slot(serving, gate_of, kind, first):
    path, body = "/v1/completions", BODY | {"max_tokens": 200, "stream": first == "stream"}
    if first == "call":
        path, body = "/profile", {"prompt_token_ids": [3, 9], "max_tokens": 200}

    async def play():
        async with serving() as served:
            gate, scheduler = gate_of(served), served.service.scheduler
            _reader, writer = await _connect(served, kind)
            writer.write(_request(path, body))
            await served.until(lambda: scheduler.running == 1)
            if first == "stream":
                gate.let(3)
                await served.until(lambda: gate.passes == 3)
            if first == "half":
                writer.write_eof()
                await asyncio.sleep(0.15)
                assert scheduler.running == 1
            writer.close()
            await _lost(served, gate)
            before = gate.passes
            gate.open()
            await served.until(lambda: scheduler.running == 0)
            assert gate.passes - before < 10

    asyncio.run(play())


@pytest.mark.parametrize("kind", KINDS)
def test_a_request_cut_in_its_body_is_dropped_without_a_traceback(serving, kind, caplog):
    async def play():
        async with serving() as served:
            reader, writer = await _connect(served, kind)
            writer.write(_request("/v1/completions", BODY, length=10_000))
            await asyncio.sleep(0.05)
            writer.write_eof()
            assert await asyncio.wait_for(reader.read(), 30) == b""
            writer.close()
            await served.post("/v1/completions", BODY)

    asyncio.run(play())
    assert not caplog.records


@pytest.mark.parametrize("kind", KINDS)
def test_a_reset_connection_frees_its_slot(serving, gate_of, kind):
    async def play():
        async with serving() as served:
            gate, scheduler = gate_of(served), served.service.scheduler
            _reader, writer = await _connect(served, kind)
            writer.write(_request("/v1/completions", BODY))
            await served.until(lambda: scheduler.running == 1)
            plain = writer.get_extra_info("socket")
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            writer.transport.abort()
            await _lost(served, gate)
            before = gate.passes
            gate.open()
            await served.until(lambda: scheduler.running == 0)
            assert gate.passes - before < 3

    asyncio.run(play())
