"""What loading finds out by itself: slots on the target's text, token maps, shared tables, taps."""

import json
import logging
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from specengine.decoding.options import EngineOptions
from specengine.drafters import load_drafter
from specengine.drafters.checkpoint import INDEX, new_network, write_network
from specengine.drafters.config import parse_config
from specengine.drafters.loading import drafter_of, fitted
from specengine.drafters.slot_check import tell_slots
from specengine.errors import CheckpointError
from specengine.lattice import Lattice
from specengine.models import Target


@pytest.fixture
def llama(tiny_model):
    return Target(tiny_model("qwen3_5"), taps=())


class Reading:
    """A drafter that is right in `share` of its drafts when its rows are read as `truth`."""

    trained_positions = 3
    taps = (0,)

    def __init__(self, texts, truth: str, read: str, share: float) -> None:
        self.texts, self.ahead, self.share = texts, 1 + (read != truth), share
        self.draw = np.random.default_rng(0)

    def new_state(self, capacity):
        return type("State", (), {"length": 0, "tokens": []})()

    def extend(self, state, features, tokens):
        assert features.shape == (1, 64)
        state.tokens = [*state.tokens, *tokens.tolist()]
        state.length += 1

    def draft(self, state, anchor, positions):
        known = next(text for text in self.texts if text[: state.length] == state.tokens)
        assert known[state.length] == anchor
        place = state.length + self.ahead
        right = [*known[place : place + positions], 0, 0, 0][:positions]
        wrong = [(token + 7) % 61 for token in right]
        ids = right if self.draw.random() < self.share else wrong
        return Lattice(np.array(ids)[:, None], np.zeros((positions, 1, 1), dtype=np.float32))


def _texts(target):
    from specengine.drafters import slot_check

    target.taps = (0,)
    starts = slot_check._starts(target.vocab_size)
    return [slot_check._text(target, start)[0] for start in starts]


@pytest.mark.parametrize("truth", ["in_place", "shifted"])
@pytest.mark.parametrize("share", [1.0, 0.5])
def test_slots_show_on_the_targets_text(truth, share, llama, tmp_path, caplog):
    texts = _texts(llama)
    with caplog.at_level(logging.INFO, "specengine"):
        found = tell_slots(lambda read: Reading(texts, truth, read, share), llama, tmp_path)
    assert found == truth
    assert "slots are not stated" in caplog.text
    assert llama.taps == (0,)


def test_a_drafter_that_is_never_right_shows_nothing(llama, tmp_path):
    texts = _texts(llama)
    with pytest.raises(CheckpointError, match="add sample_from_anchor"):
        tell_slots(lambda read: Reading(texts, "shifted", read, 0.0), llama, tmp_path)


def test_readings_that_are_equally_right_show_nothing(llama, tmp_path):
    texts = _texts(llama)
    with pytest.raises(CheckpointError, match="cannot tell"):
        tell_slots(lambda read: Reading(texts, "shifted", "shifted", 1.0), llama, tmp_path)


def _files(folder, change):
    """Rewrite a drafter's only shard without its index."""
    path = next(folder.glob("*.safetensors"))
    tensors = load_file(path)
    path.unlink()
    (folder / INDEX).unlink(missing_ok=True)
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


@pytest.fixture
def written(make_kind, tmp_path):
    def write(name, target):
        network = make_kind(name, target)
        write_network(network, network.config, tmp_path, shard_bytes=2**24)
        return tmp_path

    return write


def test_unstated_slots_of_a_random_drafter_are_refused(written, llama):
    folder = written("dspark", llama)
    table = json.loads((folder / "config.json").read_text())
    del table["sample_from_anchor"]
    names = ("block_size", "mask_token_id", "target_layer_ids")
    table["dflash_config"] = {name: table.pop(name) for name in names}
    (folder / "config.json").write_text(json.dumps(table))
    with pytest.raises(CheckpointError, match="does not say which tokens"):
        load_drafter("dspark", folder, llama)


def _one_token_twice(tensors):
    tensors["d2t"][1] = tensors["d2t"][0] - 1


def _outside(tensors):
    tensors["d2t"][3] = 60


def _absolute(tensors):
    tensors["d2t"] += torch.arange(len(tensors["d2t"]))


def _another_mask(tensors):
    tensors["t2d"] = torch.ones(61, dtype=torch.bool)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_one_token_twice, "'d2t' maps two draft ids to one token"),
        (_outside, "'d2t' maps to token 63 of 61"),
        (_absolute, "'d2t' maps"),
        (_another_mask, "'d2t' and 't2d' disagree"),
    ],
)
@pytest.mark.parametrize("name", ["eagle3-own", "dspark-own"])
def test_wrong_token_maps_are_refused(name, change, message, written, target):
    folder = written(name, target)
    _files(folder, change)
    with pytest.raises(CheckpointError, match=message):
        load_drafter("auto", folder, target)


def test_token_maps_with_their_mask_load(written, target):
    folder = written("eagle3-own", target)

    def add_mask(tensors):
        reached = torch.arange(40) + tensors["d2t"]
        tensors["t2d"] = torch.zeros(61, dtype=torch.bool).index_fill(0, reached, True)

    _files(folder, add_mask)
    drafter = load_drafter("eagle3", folder, target)
    assert len(drafter.vocabulary.target_ids(torch.arange(40)).unique()) == 40


def test_maps_of_nothing_load_and_others_need_a_size(written, target):
    folder = written("eagle3", target)
    _files(folder, lambda t: t.update(d2t=torch.zeros(61, dtype=torch.int64)))
    load_drafter("eagle3", folder, target)
    _files(folder, lambda t: t["d2t"].fill_(1))
    with pytest.raises(CheckpointError, match="names no draft_vocab_size"):
        load_drafter("eagle3", folder, target)


def test_copies_of_the_targets_tables_are_shared(written, target):
    for table in (target.embed_tokens, target.head):
        table.bfloat16().float()
    folder = written("dspark", target)

    def add_tables(tensors):
        tensors["embed_tokens.weight"] = target.embed_tokens.weight.bfloat16()
        tensors["lm_head.weight"] = target.head.weight.bfloat16() * 2

    _files(folder, add_tables)
    drafter = load_drafter("dspark", folder, target)
    assert drafter.network.embed_tokens is None
    assert drafter.network.lm_head is not None
    hidden = torch.randn(2, 64)
    assert torch.equal(drafter.vocabulary.head(hidden), target.head(hidden) * 2)


@pytest.fixture
def tied(make_kind_table, target, tmp_path):
    """`tied(width, table=None)`: the drafter of a checkpoint whose head is its own embedding."""

    def load(width, table=None):
        changes = {"hidden_size": width, "tie_word_embeddings": True, "draft_vocab_size": None}
        names = {"embed_tokens.weight", "layers.0.hidden_norm.weight"}
        config = parse_config(make_kind_table("eagle3", target, changes), "test", names)
        network = new_network(config)
        for parameter in network.parameters():
            torch.nn.init.normal_(parameter, std=0.25)
        if table is not None:
            network.embed_tokens.weight.data.copy_(table)
        write_network(network, config, tmp_path / "tied", shard_bytes=2**24)
        return load_drafter("auto", tmp_path / "tied", target)

    return load


@pytest.mark.parametrize("copied", [False, True])
def test_a_tied_head_is_the_drafters_embedding_even_as_a_copy_of_the_targets(tied, target, copied):
    table = target.embed_tokens.weight.bfloat16().float()
    target.embed_tokens.weight.data.copy_(table)
    drafter = tied(64, table if copied else None)
    hidden = torch.randn(2, 64)
    embedding = drafter.vocabulary.embed(torch.arange(61))
    assert torch.equal(embedding, table) == copied
    torch.testing.assert_close(drafter.vocabulary.head(hidden), hidden @ embedding.T)


def test_a_tied_head_of_another_width_drafts(tied):
    drafter = tied(48)
    state = drafter.new_state(4)
    drafter.extend(state, torch.randn(3, 64 * len(drafter.taps)), np.array([3, 4, 5]))
    assert drafter.draft(state, 7, 4).check().ids.max() < 61


@pytest.mark.parametrize("family", ["llama", "gemma3", "qwen3"])
@pytest.mark.parametrize("layout", ["plain", "prepacked"])
def test_a_borrowed_head_is_the_targets_whatever_holds_it(tiny_model, make_kind, family, layout):
    model = tiny_model(family)
    weight = model.lm_head.weight.detach().clone()
    tied = torch.equal(weight, model.model.embed_tokens.weight)
    assert tied == (family != "qwen3")
    borrowing = Target(model, options=EngineOptions(linear=layout))
    drafter = drafter_of(make_kind("dflash2", borrowing), borrowing)
    hidden = torch.randn(3, 64)
    torch.testing.assert_close(drafter.vocabulary.head(hidden), hidden @ weight.T)


def test_usual_taps(written, target):
    folder = written("eagle3", target)
    path = folder / "config.json"
    table = json.loads(path.read_text())
    del table["target_layer_ids"]
    path.write_text(json.dumps(table))

    def widen(tensors):
        tensors["fc.weight"] = torch.randn(64, 3 * 64)

    _files(folder, widen)
    assert load_drafter("eagle3", folder, target).taps == (1, 2, 2)


@pytest.mark.parametrize(
    ("drafter_layers", "layers", "taps"),
    [
        (5, 36, (1, 9, 17, 25, 33)),
        (6, 48, (1, 10, 19, 27, 36, 45)),
        (3, 12, (1, 5, 9)),
        (1, 28, (14,)),
    ],
)
def test_usual_taps_of_blocks_are_those_of_their_authors(
    drafter_layers, layers, taps, make_kind_config, target
):
    target.num_layers = layers
    config = replace(
        make_kind_config("dflash", target),
        num_hidden_layers=drafter_layers,
        target_layer_ids=(),
    )
    assert fitted(config, target, "test").target_layer_ids == taps


def test_names_that_mean_the_same_tensor_are_refused(written, target):
    folder = written("dflash", target)
    _files(folder, lambda t: t.update({"model.norm.weight": t["norm.weight"].clone()}))
    with pytest.raises(CheckpointError, match="which are the same tensor"):
        load_drafter("dflash", folder, target)
