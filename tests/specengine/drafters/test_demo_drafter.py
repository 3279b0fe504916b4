"""The drafters that ship: sizes, and tau in the decoding loop on the real target."""

import hashlib
import json
from pathlib import Path

import pytest
import torch

from specengine.decoding.engine import Engine
from specengine.drafters import load_drafter
from specengine.drafters.checkpoint import read_network
from specengine.models import load_target

ROOT = Path(__file__).parents[3]
ASSETS = ROOT / "assets"
PARAMETERS = {
    "dflash": 2_363_008, "dflash2": 15_956_352, "dspark": 3_936_465, "eagle3": 2_767_104,
}  # fmt: skip
TAPS = dict.fromkeys(PARAMETERS, (14, 27)) | {"dflash2": (1, 8, 14, 20, 27)}
TAU = {"dflash": 1.6, "dflash2": 2.5, "dspark": 1.7, "eagle3": 1.7}
"""What a chain reaches on two plain requests, with room for another processor's rounding."""
TARGET = ROOT / "models" / "smollm2-135m-instruct"
PROMPTS = (
    "A baker sells 12 loaves in the morning and twice as many in the afternoon. How many loaves?",
    "Write a Python function that returns the largest number of a list.",
)


def _folder(kind):
    return ASSETS / f"smollm2-135m-instruct-{kind}"


def test_files_stay_small():
    files = [path for path in ASSETS.rglob("*") if path.is_file()]
    assert max(path.stat().st_size for path in files) <= 16 * 2**20
    assert sum(path.stat().st_size for path in files) <= 48 * 2**20


@pytest.mark.parametrize("kind", sorted(PARAMETERS))
def test_the_checkpoint_is_whole_and_finite(kind):
    network = read_network(_folder(kind), torch.bfloat16, "cpu")
    assert network.config.kind == kind
    assert sum(p.numel() for p in network.parameters()) == PARAMETERS[kind]
    assert network.config.target_layer_ids == TAPS[kind]


@pytest.mark.parametrize("kind", sorted(PARAMETERS))
def test_records_are_those_of_the_weights(kind):
    training = json.loads((_folder(kind) / "training.json").read_text())
    assert training["parameters"] == PARAMETERS[kind]
    for name, digest in training["weights_sha256"].items():
        assert hashlib.sha256((_folder(kind) / name).read_bytes()).hexdigest() == digest
    evaluation = json.loads((_folder(kind) / "evaluation.json").read_text())
    assert len(evaluation["benchmarks"]) == 5
    for table in evaluation["benchmarks"].values():
        tau = table["tau"]
        assert 1.0 <= tau["chain/7"] <= tau["best_first/7/16"] <= tau["best_first/7/32"]
        assert tau["best_first/7/32"] <= tau["oracle/7"]


@pytest.fixture(scope="module")
def prompts():
    """Token ids of the two requests."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(TARGET, local_files_only=True)
    texts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], add_generation_prompt=True, tokenize=False
        )
        for prompt in PROMPTS
    ]
    return [tokenizer.encode(text, add_special_tokens=False) for text in texts]


@pytest.fixture(scope="module")
def target():
    return load_target(TARGET)


@pytest.mark.model
@pytest.mark.skipif(not TARGET.is_dir(), reason="needs the prepared SmolLM2 folder under models/")
@pytest.mark.parametrize("kind", sorted(PARAMETERS))
def test_it_drafts_well_for_its_target(kind, prompts, target):
    drafter = load_drafter(kind, _folder(kind), target)
    target.taps = drafter.taps
    engine = Engine(target, drafter)
    for prompt in prompts:
        session = engine.start(prompt, 32)
        while session.finish_reason is None:
            session.step()
    assert engine.counters.emitted_tokens / engine.counters.steps > TAU[kind]
