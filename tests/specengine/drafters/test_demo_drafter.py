"""The drafter that ships: sizes, and tau in the decoding loop on the real target."""

from pathlib import Path

import pytest
import torch

from specengine.decoding import Engine
from specengine.drafters import load_drafter
from specengine.drafters.checkpoint import read_network
from specengine.models import load_target

ROOT = Path(__file__).parents[3]
DRAFTER = ROOT / "assets" / "smollm2-135m-instruct-dflash2"
TARGET = ROOT / "models" / "smollm2-135m-instruct"
PROMPTS = (
    "A baker sells 12 loaves in the morning and twice as many in the afternoon. How many loaves?",
    "Write a Python function that returns the largest number of a list.",
)


def test_files_stay_small():
    files = [path for path in (ROOT / "assets").rglob("*") if path.is_file()]
    assert max(path.stat().st_size for path in files) <= 16 * 2**20
    assert sum(path.stat().st_size for path in files) <= 48 * 2**20


def test_the_checkpoint_is_whole_and_finite():
    network = read_network(DRAFTER, torch.bfloat16, "cpu")
    assert sum(p.numel() for p in network.parameters()) == 15_956_352
    assert network.config.target_layer_ids == (1, 8, 14, 20, 27)


@pytest.mark.model
@pytest.mark.skipif(not TARGET.is_dir(), reason="needs the prepared SmolLM2 folder under models/")
def test_it_drafts_well_for_its_target():
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(TARGET, local_files_only=True)
    target = load_target(TARGET)
    drafter = load_drafter("dflash2", DRAFTER, target)
    target.taps = drafter.taps
    engine = Engine(target, drafter)
    for prompt in PROMPTS:
        text = tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], add_generation_prompt=True, tokenize=False
        )
        session = engine.start(tokenizer.encode(text, add_special_tokens=False), 64)
        while session.finish_reason is None:
            session.step()
    assert engine.counters.emitted_tokens / engine.counters.steps > 2.5
