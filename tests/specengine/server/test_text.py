"""Incremental text equals whole text, however tokens are grouped."""

from itertools import pairwise
from threading import Event, Thread
from time import monotonic

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from specengine.errors import CheckpointError, RequestError
from specengine.server.text import Detokenizer, StopStrings, TextCodec, TextOutput

tokens_strategy = st.lists(st.integers(0, 60), max_size=60)


@st.composite
def grouped(draw):
    tokens = draw(tokens_strategy)
    cuts = sorted(draw(st.lists(st.integers(0, len(tokens)), max_size=8)))
    bounds = [0, *cuts, len(tokens)]
    return tokens, [tokens[a:b] for a, b in pairwise(bounds)]


@settings(max_examples=200, deadline=None)
@given(tokens=tokens_strategy)
def test_pieces_join_to_the_decoded_text(tiny_tokenizer, tokens):
    detokenizer = Detokenizer(tiny_tokenizer)
    pieces = [detokenizer.add(token) for token in tokens] + [detokenizer.finish()]
    assert "".join(pieces) == tiny_tokenizer.decode(tokens, skip_special_tokens=True)


@settings(max_examples=200, deadline=None)
@given(case=grouped(), stops=st.lists(st.text("abent.é", min_size=1, max_size=3), max_size=3))
def test_text_does_not_depend_on_the_grouping(tiny_tokenizer, case, stops):
    tokens, groups = case
    whole, chunked = TextOutput(tiny_tokenizer, stops), TextOutput(tiny_tokenizer, stops)
    expected = whole.add(tokens) + whole.finish()
    text = "".join(chunked.add(group) for group in groups) + chunked.finish()
    assert text == expected
    full = tiny_tokenizer.decode(tokens, skip_special_tokens=True)
    places = [place for stop in stops if (place := full.find(stop)) >= 0]
    # The earliest end of a match decides; of matches that one token completes, the earliest start.
    assert full.startswith(text)
    assert (text == full) == (not places)
    assert not any(stop in text for stop in stops)


def test_a_character_comes_whole_with_its_last_byte(tiny_tokenizer):
    tokens = tiny_tokenizer.encode("a日🙂").ids
    assert len(tokens) == 1 + 3 + 4
    detokenizer = Detokenizer(tiny_tokenizer)
    assert [detokenizer.add(token) for token in tokens] == ["a", "", "", "日", "", "", "", "🙂"]
    assert detokenizer.finish() == ""


@pytest.fixture(scope="module")
def byte_tokenizer():
    """256 single bytes as Llama's and Gemma's have them, `a`, a space's `b`, and `<eos>`."""
    pieces = [*(f"<0x{byte:02X}>" for byte in range(256)), "a", "\u2581b"]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True))
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)])
    tokenizer.add_special_tokens(["<eos>"])
    return tokenizer


@settings(max_examples=200, deadline=None)
@given(characters=st.lists(st.sampled_from(["a", " b", "é", "日", "🙂", "<eos>"]), max_size=24))
def test_characters_of_single_bytes_join_to_the_decoded_text(byte_tokenizer, characters):
    tokens = []
    for character in characters:
        named = {"a": [256], " b": [257], "<eos>": [258]}
        tokens += named.get(character, list(character.encode()))
    detokenizer = Detokenizer(byte_tokenizer)
    pieces = [detokenizer.add(token) for token in tokens] + [detokenizer.finish()]
    assert "".join(pieces) == byte_tokenizer.decode(tokens, skip_special_tokens=True)
    assert not any("\ufffd" in piece for piece in pieces)


def test_an_unfinished_character_ends_as_a_replacement(tiny_tokenizer):
    detokenizer = Detokenizer(tiny_tokenizer)
    pieces = [detokenizer.add(token) for token in tiny_tokenizer.encode("日").ids[:2]]
    assert pieces == ["", ""]
    assert detokenizer.finish() == "\ufffd"


def test_special_tokens_have_no_text(tiny_tokenizer):
    detokenizer = Detokenizer(tiny_tokenizer)
    assert [detokenizer.add(token) for token in (3, 2, 4)] == ["a", "", "b"]


@pytest.mark.parametrize(
    ("stops", "pieces", "given_out", "stopped"),
    [
        (["end"], ["the e", "n", "d of"], ["the ", "", ""], True),
        (["end"], ["the e", "n", "t"], ["the ", "", "ent"], False),
        (["aab"], ["a", "a", "a", "b", "c"], ["", "", "a", "", ""], True),
        (["bc", "abcd"], ["xab", "c"], ["x", "a"], True),
        ([], ["any"], ["any"], False),
    ],
)
def test_stop_strings_hold_back_what_may_become_one(stops, pieces, given_out, stopped):
    text = StopStrings(stops)
    assert [text.add(piece) for piece in pieces] == given_out
    assert text.stopped is stopped


def test_a_folder_without_tokenizer_serves_ids_alone(tmp_path):
    codec = TextCodec.load(tmp_path)
    with pytest.raises(RequestError, match=r"tokenizer\.json"):
        codec.encode("a", "prompt")
    assert Detokenizer(codec.tokenizer).add(3) == ""


def test_a_broken_tokenizer_is_named(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        TextCodec.load(tmp_path)


def test_templates_are_read_from_either_file(tmp_path, tiny_tokenizer, chat_template):
    tiny_tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": {"content": "<eos>"}}')
    codec = TextCodec.load(tmp_path)
    messages = [{"role": "user", "content": "abe"}]
    with pytest.raises(RequestError, match="chat template"):
        codec.encode_chat(messages, {})
    (tmp_path / "chat_template.jinja").write_text(chat_template)
    ids = TextCodec.load(tmp_path).encode_chat(messages, {})
    assert tiny_tokenizer.decode(ids, skip_special_tokens=False) == "u abe<eos>a "
    (tmp_path / "chat_template.jinja").write_text("{{ raise_exception('no such role') }}")
    with pytest.raises(RequestError, match="no such role"):
        TextCodec.load(tmp_path).encode_chat(messages, {})


def test_other_threads_run_while_a_long_text_is_encoded(tiny_tokenizer, chat_template):
    codec = TextCodec(tiny_tokenizer, chat_template, {})
    text, ticks, done = "abe " * 100_000, [], Event()

    def tick():
        while not done.wait(0.001):
            ticks.append(monotonic())

    Thread(target=tick, daemon=True).start()
    try:
        for encode in (
            lambda: codec.encode(text, "prompt"),
            lambda: codec.encode_chat([{"role": "user", "content": text}], {}),
        ):
            before = len(ticks)
            assert len(encode()) > 100_000
            assert len(ticks) > before + 5
    finally:
        done.set()


def test_text_without_a_token_is_the_requests_failure():
    tokenizer = Tokenizer(models.WordLevel({"a": 0}, unk_token="lost"))
    codec = TextCodec(tokenizer, "{{ messages[0].content }}", {})
    assert codec.encode("a", "prompt") == [0]
    with pytest.raises(RequestError, match="prompt: cannot be encoded"):
        codec.encode("b", "prompt")
    with pytest.raises(RequestError, match="messages: cannot be encoded"):
        codec.encode_chat([{"role": "user", "content": "b"}], {})
