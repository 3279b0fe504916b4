"""Speed of the decoding engine at batch 1, as ratios measured in one run.

Without a drafter: AR tokens per second of the engine against Transformers' `generate`, same folder,
dtype, threads and prompts. With the demo drafter: AR, chain and best-first of the same engine.
The arms of a comparison alternate within every prompt (A B B A), so that a slow spell of the
machine meets all of them.

    python benchmarks/engine.py [--target DIR] [--drafter DIR] [--tokens N] [--json]
"""

import argparse
import math
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import transformers
from facts import write
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from specengine.decoding.engine import Engine
from specengine.decoding.options import EngineOptions
from specengine.drafters import load_drafter
from specengine.models import load_target

ROOT = Path(__file__).resolve().parents[1]
PROMPTS = (
    "Write a Python function that returns the n-th Fibonacci number.",
    "A train travels 120 km in 1.5 hours. How far does it go in 4 hours?",
    "Explain in three sentences why the sky is blue.",
    "List five animals that live in the sea and one fact about each.",
)
LAYOUTS = {
    "plain": EngineOptions(),
    "prepacked": EngineOptions(linear="prepacked"),
    "prepacked, fused": EngineOptions(linear="prepacked", fused_projections=True),
}
Arm = Callable[[list[int]], int]
"""Plays a prompt to its end and returns how many tokens came."""


def engine_arm(engine: Engine, tokens: int, *, ignore_eos: bool) -> Arm:
    """One request of the engine."""

    def play(prompt: list[int]) -> int:
        session = engine.start(prompt, tokens, ignore_eos=ignore_eos)
        count = 0
        while session.finish_reason is None:
            count += len(session.step())
        return count

    return play


def generate_arm(folder: Path, dtype: torch.dtype, tokens: int) -> Arm:
    """Transformers' own loop, with its defaults."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()

    def play(prompt: list[int]) -> int:
        ids = torch.tensor([prompt])
        with torch.inference_mode():
            output = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=tokens,
                min_new_tokens=tokens,
                do_sample=False,
            )
        return output.shape[1] - len(prompt)

    return play


def alternate(
    arms: dict[str, Arm], prompts: Sequence[list[int]], rounds: int
) -> dict[str, list[float]]:
    """Tokens per second of each arm, one number per prompt, round and direction."""
    for arm in arms.values():
        arm(prompts[0][:8])
    rates: dict[str, list[float]] = {name: [] for name in arms}
    for _ in range(rounds):
        for prompt in prompts:
            for name in [*arms, *reversed(arms)]:
                begin = time.perf_counter()
                count = arms[name](prompt)
                rates[name].append(count / (time.perf_counter() - begin))
    return rates


def against(rates: dict[str, list[float]], base: str) -> dict[str, dict[str, float]]:
    """Median rate of each arm, and its ratio to `base`: geometric mean, lowest, highest pair."""
    table = {}
    for name, values in rates.items():
        logs = [math.log(a / b) for a, b in zip(values, rates[base], strict=True)]
        table[name] = {
            "tokens_per_second": statistics.median(values),
            "ratio": math.exp(statistics.fmean(logs)),
            "ratio_low": math.exp(min(logs)),
            "ratio_high": math.exp(max(logs)),
        }
    return table


def show(title: str, base: str, table: dict[str, dict[str, float]]) -> None:
    """Print one comparison."""
    print(f"\n{title} (ratios to {base}; lowest to highest pair)")
    for name, row in table.items():
        extra = f"   tau {row['tau']:.2f}" if "tau" in row else ""
        print(
            f"  {name:28} {row['tokens_per_second']:8.1f} tokens/s   {row['ratio']:.2f}x"
            f"  ({row['ratio_low']:.2f} to {row['ratio_high']:.2f}){extra}"
        )


def overhead(arguments: argparse.Namespace, prompts: list[list[int]]) -> dict:
    """The engine's AR decoding against `generate`."""
    dtype = getattr(torch, arguments.dtype)
    arms = {"transformers generate": generate_arm(arguments.target, dtype, arguments.tokens)}
    for name, options in LAYOUTS.items():
        target = load_target(arguments.target, dtype=arguments.dtype, options=options)
        engine = Engine(target, None, options)
        arms[f"engine AR, {name}"] = engine_arm(engine, arguments.tokens, ignore_eos=True)
    table = against(alternate(arms, prompts, arguments.rounds), "transformers generate")
    show("AR at batch 1", "generate", table)
    return table


def drafts(arguments: argparse.Namespace, prompts: list[list[int]]) -> dict:
    """AR, chain and best-first trees of one engine."""
    layout = {"linear": arguments.linear}
    target = load_target(arguments.target, dtype=arguments.dtype, options=EngineOptions(**layout))
    drafter = load_drafter("dflash2", arguments.drafter, target, EngineOptions(**layout))
    target.taps = drafter.taps
    choices = {
        "chain": EngineOptions(**layout),
        "best-first, 16 rows": EngineOptions(tree="best_first", nodes=16, **layout),
        "best-first, 32 rows": EngineOptions(tree="best_first", nodes=32, **layout),
    }
    engines = {"AR": Engine(target, None, EngineOptions(**layout))}
    engines |= {name: Engine(target, drafter, options) for name, options in choices.items()}
    arms = {
        name: engine_arm(engine, arguments.tokens, ignore_eos=False)
        for name, engine in engines.items()
    }
    table = against(alternate(arms, prompts, arguments.rounds), "AR")
    for name, engine in engines.items():
        counters = engine.counters
        table[name]["tau"] = counters.emitted_tokens / counters.steps
        table[name] |= {
            f"milliseconds_{part}": 1e3 * seconds / counters.steps
            for part, seconds in counters.seconds.items()
        }
    show("Drafts", "AR", table)
    return table


def main() -> None:
    """Run both comparisons; the second needs a drafter."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    model = ROOT / "models" / "smollm2-135m-instruct"
    demo = ROOT / "assets" / "smollm2-135m-instruct-dflash2"
    parser.add_argument("--target", type=Path, default=model)
    parser.add_argument("--drafter", type=Path, default=demo)
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    parser.add_argument("--linear", default="plain", choices=["plain", "prepacked"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="write benchmarks/results/engine.json")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    tokenizer = Tokenizer.from_file(str(arguments.target / "tokenizer.json"))
    chat = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
    prompts = [tokenizer.encode(chat.format(text)).ids for text in PROMPTS]
    result = {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "dtype": arguments.dtype,
        "threads": arguments.threads,
        "tokens": arguments.tokens,
        "pairs": 2 * len(prompts) * arguments.rounds,
        "overhead": overhead(arguments, prompts),
    }
    if arguments.drafter.is_dir():
        result["drafts"] = drafts(arguments, prompts)
    else:
        print(f"\nno drafter at {arguments.drafter}: drafts are not measured")
    if arguments.json:
        write("engine", result)


if __name__ == "__main__":
    main()
