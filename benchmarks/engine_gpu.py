"""Milliseconds per pass of the decoding engine on one GPU: launches, weights and captured graphs.

A Qwen3 of 8B shape with drawn near-Gaussian weights: speed does not depend on their values, and no
checkpoint is needed. Every arm decodes the same prompt greedily, one row (AR) or a chain of 15
drafted tokens (16 rows, the drafter replaced by a fixed guess, so that the verify pass is what is
timed). Arms alternate A B B A within a round; ratios are taken inside the rounds. Beside each time
stands what the bytes of its weights need at the measured read ceiling.

    python benchmarks/engine_gpu.py [--layers 36] [--rounds 5] [--passes 40] [--json]
"""

import argparse
import math
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from facts import write
from transformers import Qwen3Config, Qwen3ForCausalLM
from transformers.initialization import no_init_weights

from specengine.decoding.options import EngineOptions
from specengine.models import Target
from specengine.trees import DraftTree

READ_CEILING = 4.372e12
"""Bytes per second that `benchmarks/weights.py` measured on this GPU for a plain sum."""
PROMPT = 200
ROWS = (1, 16)
ARMS = {
    "plain": EngineOptions(),
    "plain, graphs": EngineOptions(cuda_graphs=True),
    "plain, fused, graphs": EngineOptions(fused_projections=True, cuda_graphs=True),
    "w12": EngineOptions(linear="w12"),
    "w12, graphs": EngineOptions(linear="w12", cuda_graphs=True),
    "w12, fused, graphs": EngineOptions(linear="w12", fused_projections=True, cuda_graphs=True),
}
Pass = Callable[[], None]


def drawn_model(layers: int) -> Qwen3ForCausalLM:
    """Weights of one seed: all arms hold the same."""
    config = Qwen3Config(
        vocab_size=151936,
        hidden_size=4096,
        intermediate_size=12288,
        num_hidden_layers=layers,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
    )
    torch.manual_seed(0)
    with torch.device("cuda"), no_init_weights():
        model = Qwen3ForCausalLM._from_config(config, dtype=torch.bfloat16)
    for name, parameter in model.named_parameters():
        if "norm" in name:
            parameter.data.fill_(1.0)
        else:
            parameter.data.normal_(0.0, 0.02)
    return model.eval()


def chain_of(rows: int) -> DraftTree:
    """A fixed guess: what is drafted does not change how long its pass takes."""
    return DraftTree(
        tokens=np.arange(100, 100 + rows, dtype=np.int64),
        parent=np.arange(-1, rows - 1, dtype=np.int32),
        depth=np.arange(rows, dtype=np.int32),
        logp=np.zeros(rows, dtype=np.float32),
    )


def passes_of(target: Target, rows: int) -> Pass:
    """One pass, its greedy tokens on the host, and a commit of its first row."""
    cache = target.new_cache(1024)
    target.forward(cache, torch.arange(1000, 1000 + PROMPT))
    target.commit(cache, range(PROMPT))
    tree = chain_of(rows)

    def run() -> None:
        if cache.length > 700:
            cache.length = PROMPT
        logits, _ = target.verify(cache, tree)
        logits.argmax(dim=-1).cpu()
        target.commit(cache, [0])

    return run


def generate_pass(model: Qwen3ForCausalLM) -> Callable[[int], None]:
    """Transformers' own loop with its defaults."""
    prompt = torch.arange(1000, 1000 + PROMPT, device="cuda")[None]

    def run(count: int) -> None:
        with torch.inference_mode():
            model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=count,
                min_new_tokens=count,
                do_sample=False,
            )

    return run


def milliseconds(run: Pass, count: int) -> float:
    """Mean of `count` passes, the device waited for."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(count):
        run()
    torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - begin) / count


def measure(runs: dict[str, Pass], rounds: int, count: int) -> dict[str, list[float]]:
    """Two times per arm and round, in opposite orders."""
    for run in runs.values():
        milliseconds(run, 3)
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name in [*runs, *reversed(runs)]:
            times[name].append(milliseconds(runs[name], count))
    return times


def row_of(name: str, times: dict[str, list[float]], base: str, read: int) -> dict[str, float]:
    """Median, ratio to the base within pairs, and what the bytes alone would take."""
    logs = [math.log(b / a) for a, b in zip(times[name], times[base], strict=True)]
    median = statistics.median(times[name])
    return {
        "milliseconds": median,
        "ratio": math.exp(statistics.median(logs)),
        "ratio_low": math.exp(min(logs)),
        "ratio_high": math.exp(max(logs)),
        "weight_gigabytes": read / 1e9,
        "fraction_of_read_ceiling": read / READ_CEILING / (median / 1e3),
    }


def main() -> None:
    """Build all arms, then time them side by side."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=36)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--passes", type=int, default=40)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    plain = drawn_model(arguments.layers)
    generate = generate_pass(plain)
    generate(8)
    loop = statistics.median(
        milliseconds(lambda: generate(32), 1) / 32 for _ in range(arguments.rounds)
    )
    print(f"transformers generate: {loop:.2f} ms per token, prefill included")
    del plain
    targets = {}
    for name, options in ARMS.items():
        targets[name] = Target(drawn_model(arguments.layers), options=options)
    table = {}
    for rows in ROWS:
        runs = {name: passes_of(target, rows) for name, target in targets.items()}
        times = measure(runs, arguments.rounds, arguments.passes)
        for name, target in targets.items():
            row = row_of(name, times, "plain", target.parameter_bytes())
            table[f"{rows} rows, {name}"] = row
            print(
                f"{rows:3} rows  {name:22} {row['milliseconds']:7.3f} ms"
                f"   {row['ratio']:.2f}x plain ({row['ratio_low']:.2f} to {row['ratio_high']:.2f})"
                f"   {row['fraction_of_read_ceiling']:.0%} of the read ceiling"
            )
    if arguments.json:
        write(
            "engine_gpu",
            {
                "gpu": torch.cuda.get_device_name(),
                "torch": torch.__version__,
                "layers": arguments.layers,
                "generate_milliseconds": loop,
                "results": table,
            },
        )


if __name__ == "__main__":
    main()
