"""The same engine on a GPU, in float32: drafts of every shape give its own AR text."""

import numpy as np
import pytest
import torch

from specengine.decoding import Engine
from specengine.models import Target

PROMPT = np.random.default_rng(5).integers(3, 61, 11).tolist()

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def test_drafts_give_the_ar_text(family, options, tiny_model, knowing_drafter, run_request):
    torch.backends.cuda.matmul.allow_tf32 = False
    target = Target(tiny_model(family).to("cuda"), taps=(0,))
    target.eos_token_ids = frozenset()
    output = run_request(Engine(target, None), PROMPT, 24)
    engine = Engine(target, knowing_drafter(PROMPT + output, target, 0.7), options)
    assert run_request(engine, PROMPT, 24) == output
    scores = engine.score(PROMPT, output, 7)
    assert scores.argmax.tolist() == output
    recording = engine.record(PROMPT, 24, 7)
    assert recording.tokens.tolist() == output
