"""What every drafter promises to the engine, whatever its kind."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from specengine.drafters import load_drafter
from specengine.drafters.base import DeviceDrafter
from specengine.drafters.checkpoint import INDEX, write_network
from specengine.drafters.loading import KINDS, drafter_of
from specengine.errors import CheckpointError, NumericError, RequestError

ROWS = 13


@pytest.fixture
def network(kind, make_kind, target):
    return make_kind(kind, target)


def _context(drafter, rows=ROWS, seed=1):
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(rows, 64 * len(drafter.taps), generator=generator)
    tokens = np.random.default_rng(seed).integers(0, 61, rows)
    return features, tokens


def _drafted(drafter, positions=4, anchor=7, capacity=ROWS):
    features, tokens = _context(drafter)
    state = drafter.new_state(capacity)
    drafter.extend(state, features, tokens)
    return drafter.draft(state, anchor, positions)


@pytest.mark.parametrize("positions", [1, 4, 15])
def test_lattices_are_whole_and_normalised(network, target, positions):
    lattice = _drafted(drafter_of(network, target), positions).check()
    assert lattice.positions == positions
    assert lattice.ids.dtype == np.int64
    assert lattice.edge.dtype == np.float32
    assert 0 <= lattice.ids.min() <= lattice.ids.max() < 61
    np.testing.assert_allclose(np.exp(lattice.edge).sum(-1), 1.0, atol=1e-5)
    assert (lattice.edge[0] == lattice.edge[0, 0]).all()


@pytest.mark.parametrize("seed", range(2))
def test_context_grown_in_pieces_equals_context_at_once(network, target, seed):
    drafter = drafter_of(network, target)
    features, tokens = _context(drafter)
    state = drafter.new_state(ROWS)
    draw, done = np.random.default_rng(seed), 0
    while done < ROWS:
        length = int(draw.integers(0, 5))
        drafter.extend(state, features[done : done + length], tokens[done : done + length])
        done = min(done + length, ROWS)
        assert state.length == done
        if done:
            # A draft must leave no trace, though its anchor was never committed.
            drafter.draft(state, int(draw.integers(0, 61)), 3)
    grown, whole = drafter.draft(state, 9, 4), _drafted(drafter, anchor=9)
    assert grown.ids.tolist() == whole.ids.tolist()
    np.testing.assert_allclose(grown.edge, whole.edge, atol=1e-4)


def test_an_emptied_state_serves_the_next_request(network, target):
    drafter = drafter_of(network, target)
    state = drafter.new_state(ROWS)
    for _ in range(2):
        drafter.extend(state, *_context(drafter, seed=8))
        drafter.draft(state, 3, 4)
        state.length = 0
    drafter.extend(state, *_context(drafter))
    again, fresh = drafter.draft(state, 7, 4), _drafted(drafter)
    assert again.ids.tolist() == fresh.ids.tolist()
    np.testing.assert_allclose(again.edge, fresh.edge, atol=1e-5)


def test_bad_calls_are_refused(network, target):
    drafter = drafter_of(network, target)
    with pytest.raises(RequestError, match="needs 13 positions of 12"):
        _drafted(drafter, capacity=12)
    with pytest.raises(RequestError, match="at least one position"):
        _drafted(drafter, positions=0)


def test_non_finite_states_are_refused(network, target):
    drafter = drafter_of(network, target)
    features, tokens = _context(drafter)
    features[2, 0] = float("nan")
    state = drafter.new_state(ROWS)
    drafter.extend(state, features, tokens)
    with pytest.raises(NumericError, match="non-finite"):
        drafter.draft(state, 7, 3)


def test_a_residual_beyond_half_precision_is_refused_there_only(network, target):
    with torch.no_grad():
        for layer in network.layers:
            layer.mlp.down_proj.weight.mul_(3e4)
    _drafted(drafter_of(network.bfloat16(), _cast(target, torch.bfloat16)), 3).check()
    with pytest.raises(NumericError, match="bfloat16 or float32"):
        _drafted(drafter_of(network.half(), _cast(target, torch.float16)), 3)


def _cast(target, dtype):
    target.embed_tokens.to(dtype)
    target.head.to(dtype)
    target.dtype = dtype
    return target


@pytest.fixture
def folder(network, tmp_path):
    write_network(network, network.config, tmp_path / "d", shard_bytes=2**24)
    return tmp_path / "d"


@pytest.mark.parametrize("said", ["auto", "own"])
def test_written_drafters_load_as_they_were(network, folder, target, said):
    kind = network.config.kind if said == "own" else "auto"
    drafter = load_drafter(kind, folder, target)
    assert drafter.kind == network.config.kind
    assert drafter.config == network.config
    wanted = network.bfloat16().float().state_dict()
    found = drafter.network.state_dict()
    assert found.keys() == wanted.keys()
    for name, tensor in found.items():
        assert torch.equal(tensor, wanted[name]), name
    for other in set(KINDS) - {network.config.kind}:
        with pytest.raises(CheckpointError, match=f"of kind '{network.config.kind}', not"):
            load_drafter(other, folder, target)


@pytest.mark.parametrize(
    "name", ["DFlashDraftModel", "DFlash2DraftModel", "DSparkDraftModel", "LlamaForCausalLMEagle3"]
)
def test_a_misleading_architecture_name_changes_nothing(network, folder, target, name):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"architectures": [name]}))
    drafter = load_drafter("auto", folder, target)
    assert drafter.config == network.config


def test_each_missing_or_ill_shaped_tensor_is_named(folder, target):
    path = next(folder.glob("model-*.safetensors"))
    tensors = load_file(path)
    path.unlink()
    (folder / INDEX).unlink()
    # Without an embedding or a head of its own a drafter borrows the target's.
    for name in tensors.keys() - {"embed_tokens.weight"}:
        rest = {key: tensor for key, tensor in tensors.items() if key != name}
        save_file(rest, folder / "model.safetensors")
        if name == "t2d":  # says again what d2t says, and may be left out
            load_drafter("auto", folder, target)
        else:
            with pytest.raises(CheckpointError, match=name.split(".")[-2 if "." in name else 0]):
                load_drafter("auto", folder, target)
        wrong = torch.cat((tensors[name], tensors[name][:1]))
        save_file(rest | {name: wrong}, folder / "model.safetensors")
        with pytest.raises(CheckpointError, match=f"'{name}' has shape"):
            load_drafter("auto", folder, target)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("vocab_size", 60, "vocab_size is 60, the target's is 61"),
        ("num_target_layers", 7, "num_target_layers is 7, the target's is 6"),
        ("target_layer_ids", [5], "below the last target layer, and layer 5 of 6"),
        ("target_layer_ids", [-1], "below the last target layer, and layer -1 of 6"),
        ("mask_token_id", 61, "mask_token_id 61 lies outside"),
        ("hidden_act", "gelu", "hidden_act is 'gelu'"),
        ("attention_sink_bias", True, "attention_sink_bias"),
    ],
)
def test_drafters_of_another_target_are_refused(network, folder, target, field, value, message):
    table = json.loads((folder / "config.json").read_text())
    special = table.get("dflash_config", {})
    if field == "mask_token_id" and network.config.kind == "eagle3":
        pytest.skip("EAGLE-3 has no mask token")
    (special if field in special else table)[field] = value
    (folder / "config.json").write_text(json.dumps(table))
    with pytest.raises(CheckpointError, match=message):
        load_drafter("auto", folder, target)


def test_a_target_of_another_width_is_refused(network, folder, target):
    target.hidden_size = 128
    with pytest.raises(CheckpointError, match="hidden_size is 64, the target's is 128"):
        load_drafter("auto", folder, target)


@pytest.mark.parametrize("positions", [1, 4])
def test_lattices_that_stay_on_the_device_hold_the_same_numbers(network, target, positions):
    drafter = drafter_of(network, target)
    assert isinstance(drafter, DeviceDrafter)
    state = drafter.new_state(ROWS)
    drafter.extend(state, *_context(drafter))
    there, here = drafter.draft_on_device(state, 7, positions), _drafted(drafter, positions)
    assert there.ids.is_contiguous()
    assert there.edge.is_contiguous()
    assert torch.equal(there.ids, torch.from_numpy(here.ids))
    assert torch.equal(there.edge, torch.from_numpy(here.edge))
    assert here.candidates == drafter.candidates_per_position
