"""Milliseconds per step of the first requests of a fresh engine on a GPU.

A server meets new lengths of keys in its first requests; what it prepares for each of them is paid
there. The target has the sizes of SmolLM2-135M and drawn weights, the drafter is the shipped one.

    python benchmarks/first_requests.py [--all-kernels] [--requests 8] [--steps 40]
"""

import argparse
import random
import time
from contextlib import nullcontext
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from specengine.decoding.engine import Engine
from specengine.decoding.options import EngineOptions
from specengine.drafters import load_drafter
from specengine.models import target as target_module
from specengine.models.target import Target

ROOT = Path(__file__).resolve().parents[1]
DRAFTER = ROOT / "assets" / "smollm2-135m-instruct-dflash2"


def drawn_target(options: EngineOptions) -> Target:
    """The target on the GPU, in BF16."""
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        head_dim=64,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = LlamaForCausalLM._from_config(config, dtype=torch.bfloat16)
    return Target(model, options=options)


def play(engine: Engine, prompt: list[int], steps: int) -> float:
    """Milliseconds per step; every step emits a token or more, so the limit is never in the way."""
    session = engine.start(prompt, 16 * steps, ignore_eos=True)
    start = time.perf_counter()
    for _ in range(steps):
        session.step()
    torch.cuda.synchronize()
    milliseconds = (time.perf_counter() - start) * 1e3 / steps
    session.close()
    return milliseconds


def main() -> None:
    """Print one line per request."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--all-kernels", action="store_true", help="let torch take cuDNN's, too")
    parser.add_argument("--requests", type=int, default=8)
    parser.add_argument("--steps", type=int, default=40)
    arguments = parser.parse_args()
    if arguments.all_kernels:
        target_module.decoding_attention = nullcontext
    options = EngineOptions()
    target = drawn_target(options)
    drafter = load_drafter("dflash2", DRAFTER, target, options)
    target.taps = drafter.taps
    engine = Engine(target, drafter, options)
    draw = random.Random(1)
    for number in range(arguments.requests):
        prompt = [draw.randrange(3, 49000) for _ in range(60 + 10 * (3 * number % 7))]
        print(f"request {number}: {play(engine, prompt, arguments.steps):.1f} ms per step")


if __name__ == "__main__":
    main()
