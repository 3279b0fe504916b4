"""No pass of a target leaves its attention to kernels that plan for every length."""

import torch

from specengine.decoding.engine import Engine
from specengine.models import Target
from specengine.verify.attention_kernels import decoding_attention


def test_within_only_kernels_without_plans_are_allowed():
    before = torch.backends.cuda.cudnn_sdp_enabled()
    with decoding_attention():
        assert not torch.backends.cuda.cudnn_sdp_enabled()
        assert torch.backends.cuda.flash_sdp_enabled()
        assert torch.backends.cuda.math_sdp_enabled()
    assert torch.backends.cuda.cudnn_sdp_enabled() == before


def test_every_pass_of_a_target_is_within(tiny_model, planning):
    engine = Engine(Target(tiny_model("llama")), None)
    session = engine.start([5, 6, 7], max_new_tokens=3, ignore_eos=True)
    while session.finish_reason is None:
        session.step()
    session.close()
    assert planning
    assert not any(planning)
