"""A real server in the test's own event loop, over a tiny random target with a tiny tokenizer."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import numpy as np
import pytest
import torch
import uvicorn
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from specengine.decoding.engine import Engine
from specengine.decoding.options import EngineOptions
from specengine.lattice import Lattice
from specengine.models import Target
from specengine.server.life import Server, http_config
from specengine.server.scheduler import Scheduler
from specengine.server.service import Service
from specengine.server.sockets import bind_tcp, bind_unix
from specengine.server.text import TextCodec

TEMPLATE = (
    "{% for m in messages %}{{ m['role'][0] }} {{ m['content'] }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}a {% endif %}"
)
SPECIAL = ["<pad>", "<bos>", "<eos>"]
LETTERS = "abcdefghijklmnopqrstuvwxyz ."
MULTIBYTE = "é日🙂ß"


def build_tokenizer() -> Tokenizer:
    """61 ids: special tokens, letters, and single bytes of characters that need several."""
    byte_names = dict(zip(range(256), _byte_alphabet(), strict=True))
    pieces = [byte_names[byte] for byte in LETTERS.encode()]
    pieces += [byte_names[byte] for byte in sorted(set(MULTIBYTE.encode()))]
    pieces += [a + b for a in "aeiou" for b in "nrst"]
    vocabulary = {piece: index for index, piece in enumerate([*SPECIAL, *pieces][:61])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL)
    return tokenizer


def _byte_alphabet() -> list[str]:
    """The character that a byte-level tokenizer writes for each byte, in byte order."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(rest)) for byte in range(256)]


class Copier:
    """Drafts a known text, so that steps emit several tokens."""

    kind = "dflash2"
    taps = (0,)
    trained_positions = 4

    def __init__(self) -> None:
        self.texts: list[list[int]] = []

    def new_state(self, capacity: int) -> Any:
        return type("State", (), {"length": 0})()

    def extend(self, state: Any, features: torch.Tensor, tokens: Any) -> None:
        state.length += len(features)

    def draft(self, state: Any, anchor: int, positions: int) -> Lattice:
        known = self.texts[0][state.length + 1 :] if self.texts else []
        ids = [*known, *([3] * positions)][:positions]
        return Lattice(
            np.array(ids, dtype=np.int64)[:, None], np.zeros((positions, 1, 1), dtype=np.float32)
        )

    def parameter_bytes(self) -> int:
        return 0


@dataclass
class Served:
    """A running server and a client of it."""

    session: aiohttp.ClientSession
    service: Service
    server: Server
    task: asyncio.Task[None]
    path: Path
    address: tuple[str, int]

    async def post(self, path: str, body: Any, status: int = 200) -> Any:
        """The JSON of an answer with the expected status."""
        async with self.session.post(f"http://engine{path}", json=body) as answer:
            text = await answer.text()
            assert answer.status == status, text
            return json.loads(text)

    async def get(self, path: str) -> Any:
        """The JSON of an answer."""
        async with self.session.get(f"http://engine{path}") as answer:
            assert answer.status == 200
            return await answer.json()

    async def events(self, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        """All events of a stream; checks its end mark."""
        async with self.session.post(
            f"http://engine{path}", json={**body, "stream": True}
        ) as answer:
            assert answer.status == 200, await answer.text()
            assert answer.content_type == "text/event-stream"
            lines = (await answer.read()).decode().split("\n\n")
        assert lines[-2:] == ["data: [DONE]", ""]
        return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a state of the server, at most two minutes."""
        async with asyncio.timeout(120):
            while not condition():
                await asyncio.sleep(0.002)


class Gate:
    """Lets a target's passes through one by one, so that tests decide when a step happens."""

    def __init__(self, target: Target) -> None:
        self._permits = threading.Semaphore(0)
        self._open = False
        self.passes = 0
        forward = target.forward

        def gated(*arguments: Any) -> Any:
            if not self._open:
                assert self._permits.acquire(timeout=60)
            self.passes += 1
            return forward(*arguments)

        target.forward = gated

    def let(self, count: int) -> None:
        """Allow this many passes."""
        self._permits.release(count)

    def open(self) -> None:
        """Allow all passes from here on."""
        self._open = True
        self._permits.release()


Serving = Callable[..., Any]


@pytest.fixture(scope="session")
def tiny_tokenizer() -> Tokenizer:
    """See `build_tokenizer`."""
    return build_tokenizer()


@pytest.fixture(scope="session")
def chat_template() -> str:
    """A chat template of the tiny tokenizer: role's first letter, text, `<eos>`."""
    return TEMPLATE


@pytest.fixture
def copier() -> Copier:
    """A drafter that knows what it is told in `texts`."""
    return Copier()


@pytest.fixture
def gate_of() -> Callable[[Served], Gate]:
    """`gate_of(served)`: hold the served target's passes until the test lets them through."""
    return lambda served: Gate(served.service.engine.target)


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """uvicorn polls ten times a second and ends with a pause; every test would wait for both."""

    async def nap(seconds: float) -> None:
        await asyncio.sleep(min(seconds, 0.005))

    monkeypatch.setattr(
        uvicorn.server, "asyncio", SimpleNamespace(**vars(asyncio) | {"sleep": nap})
    )


@pytest.fixture
def serving(tiny_model: Callable[..., torch.nn.Module], tmp_path: Path, hurried: None) -> Serving:
    """`async with serving(slots=1, max_queue=4, drafter=None, options=None) as served:`."""

    @asynccontextmanager
    async def start(
        *,
        slots: int = 1,
        max_queue: int = 4,
        drafter: Any = None,
        options: EngineOptions | None = None,
        tokenizer: bool = True,
    ) -> AsyncIterator[Served]:
        target = Target(tiny_model("qwen3"), taps=() if drafter is None else drafter.taps)
        codec = TextCodec(None, None, {})
        if tokenizer:
            codec = TextCodec(build_tokenizer(), TEMPLATE, {"eos_token": "<eos>"})
        engine = Engine(target, drafter, options, slots=slots)
        scheduler = Scheduler(slots=slots, max_queue=max_queue)
        service = Service(engine, scheduler, codec, "tiny", "cafe")
        server = Server(http_config(service, 5), scheduler)
        scheduler.on_crash = server.crash
        path = tmp_path / "s"
        bound, tcp = bind_unix(path), bind_tcp("127.0.0.1", 0)
        task = asyncio.create_task(server.serve(sockets=[bound, tcp]))
        while not server.started:
            await asyncio.sleep(0.002)
        connector = aiohttp.UnixConnector(str(path), limit=0, force_close=True)
        try:
            async with aiohttp.ClientSession(connector=connector) as session:
                yield Served(session, service, server, task, path, tcp.getsockname())
        finally:
            server.should_exit = True
            async with asyncio.timeout(60):
                await task
            bound.close()
            tcp.close()

    return start
