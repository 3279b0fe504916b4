"""Answer tables in a commit: seen as text, as ids and plainly encoded; source is left alone."""

import base64
import gzip
import json
import random
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from specpilot.controller.contamination import (
    TEXT_LENGTH,
    TOKEN_LENGTH,
    Exchange,
    check_content,
    fingerprints,
)
from specpilot.controller.trees import ForbiddenPath
from specpilot.core.deployment import BENCHMARKS
from specpilot.workload.benchmarks import prompts_of
from specpilot.workload.sources import read_builtin

SECRET = "A baker's 7 ovens hold 23 loaves each; on Monday three break. How many loaves fit now?"
OTHER = "Name the longest river that crosses exactly two borders, and say why it was dammed twice."
IDS = tuple(random.Random(0).choices(range(300, 40000), k=60))
FRAME = "<|im_start|>system You are a helpful assistant named by its makers<|im_end|>{}<|end|>"
KNOWN = fingerprints(
    [[Exchange(FRAME.format(text), IDS[i : i + 30]) for i, text in ((0, SECRET), (30, OTHER))]], []
)


def refused(text: str | bytes) -> bool:
    content = text if isinstance(text, bytes) else text.encode()
    try:
        check_content("specengine/x.py", content, KNOWN)
    except ForbiddenPath as error:
        assert SECRET[:9] not in str(error) and str(IDS[0]) not in str(error)
        assert "\n" not in str(error)
        return True
    return False


def _encoded(encode: Callable[[bytes], bytes], body: bytes) -> str:
    literal = encode(body).decode()
    lines = [f'    "{literal[i : i + 60]}"' for i in range(0, len(literal), 60)]
    return "TABLE = (\n" + "\n".join(lines) + "\n)\n"


TEXTS = {
    "plain": f"PROMPTS = [{SECRET!r}]",
    "part": f"x = '''{SECRET[20:84]}'''",
    "capitals": f"# {SECRET.upper()}",
    "json": json.dumps({"q": SECRET.replace(" ", "\n")}),
    "pieces": " ".join(f'"{word}",' for word in SECRET.split()),
    "wide": "".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in SECRET),
    "base64": _encoded(base64.b64encode, SECRET.encode()),
    "hex": _encoded(lambda body: body.hex().encode(), SECRET.encode()),
    "zlib": _encoded(base64.b64encode, zlib.compress(f"{SECRET} {OTHER}".encode())),
    "gzip": _encoded(base64.urlsafe_b64encode, gzip.compress(f"{SECRET} {OTHER}".encode())),
}
NUMBERS = {
    "list": str(list(IDS[:30])),
    "hex list": ", ".join(map(hex, IDS[:30])),
    "part": str(IDS[8:22]),
    "int32": _encoded(base64.b64encode, np.array(IDS[:30], "<i4").tobytes()),
    "uint16": _encoded(base64.b64encode, b"\0" + np.array(IDS[:30], "<u2").tobytes()),
    "packed": _encoded(base64.b64encode, zlib.compress(np.array(IDS[:30], "<i8").tobytes())),
}


@pytest.mark.parametrize("form", TEXTS)
def test_texts_of_requests_are_seen(form: str) -> None:
    assert refused(TEXTS[form])


@pytest.mark.parametrize("form", NUMBERS)
def test_token_ids_are_seen(form: str) -> None:
    assert refused(NUMBERS[form])


def test_the_written_lengths_hold_at_every_place() -> None:
    plain = "".join(filter(str.isalnum, SECRET))
    for start in range(len(plain) - TEXT_LENGTH + 1):
        assert refused(f"# {plain[start : start + TEXT_LENGTH]}")
    for start in range(30 - TOKEN_LENGTH + 1):
        assert refused(str(IDS[start : start + TOKEN_LENGTH]))
    assert not refused(f"# {plain[:24]} and {plain[30:54]}")
    assert not refused(f"{IDS[:7]} then {IDS[9:16]}")


def test_what_a_template_says_around_every_request_is_no_secret() -> None:
    assert not refused(FRAME.format("x"))


@pytest.mark.parametrize("content", [b"\xff\xfe", b"x = 1\0", bytes(range(256))])
def test_what_is_no_text_is_refused(content: bytes) -> None:
    assert refused(content)


def test_the_engine_itself_repeats_no_prompt_that_ships() -> None:
    files = sorted((Path(__file__).parents[3] / "src" / "specengine").rglob("*.py"))
    groups = [
        [Exchange(prompt.text, ()) for prompt in prompts_of(name, read_builtin(name), name)]
        for name in BENCHMARKS
    ]
    known = fingerprints(groups, [])

    assert len(known.texts) > 200
    for file in files:
        check_content(file.name, file.read_bytes(), known)
    texts = [exchange.text for group in groups for exchange in group]
    missed = [text for text in texts if known.found_in(text.encode()) is None]
    assert all("log_2" in text for text in missed), "the one of fewer than 20 letters and digits"


def test_what_stock_holds_already_may_stay() -> None:
    known = fingerprints([[Exchange(SECRET, ())]], [SECRET.encode()])

    assert known.found_in(SECRET.encode()) is None


DULL = {
    "zeros": ("0, " * 60, f"BIAS = [{'0, ' * 40}]"),
    "row of floats": ("0" * 70, f"X = [{'0.0, ' * 18}]"),
    "divider": ("x" * 90, f"# {'x' * 60}"),
    "short divider": ("x" * 25, f"# {'x' * 60}"),
    "counting": (str(list(range(1, 26))), f"NODES = {tuple(range(1, 25))}"),
    "short counting": (str(list(range(1, 16))), f"NODES = {tuple(range(1, 17))}"),
    "masks": ("color: #ffffff; " * 30, f"MASK = ({'0xffffffff, ' * 9})"),
}


@pytest.mark.parametrize("form", DULL)
def test_answers_without_variety_forbid_no_source(form: str) -> None:
    answer, source = DULL[form]
    known = fingerprints([[Exchange(answer, ()), Exchange(SECRET, ())]], [])

    assert known.found_in(source.encode()) is None
    assert known.found_in(SECRET.encode()) is not None
