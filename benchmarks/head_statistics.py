"""What a benchmark of LM heads needs to know of a real model, as quantiles: benchmarks/head.json.

python benchmarks/head_statistics.py models/smollm2-135m-instruct TEXT_FILE [TEXT_FILE ...]
"""

import argparse
import json
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

STATES = 12
SKIPPED, TOKENS = 20, 160
TOP = 64
"""Largest logits that are kept one by one."""
POINTS = torch.linspace(0, 1, 129)
OUT = Path(__file__).with_name("head.json")


def rounded(values: torch.Tensor) -> list[float]:
    return [float(f"{value:.5g}") for value in values.tolist()]


def main() -> None:
    """Write statistics of the head's rows, and of STATES hidden states drawn from texts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("texts", type=Path, nargs="+")
    options = parser.parse_args()
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.bfloat16).eval()
    tokenizer = Tokenizer.from_file(str(options.model / "tokenizer.json"))
    states = []
    for path in options.texts:
        tokens = tokenizer.encode(path.read_text(encoding="utf-8")[: 8 * TOKENS]).ids[:TOKENS]
        with torch.no_grad():
            states.append(model.model(torch.tensor([tokens])).last_hidden_state[0, SKIPPED:])
    drawn = torch.randperm(sum(map(len, states)), generator=torch.Generator().manual_seed(0))[
        :STATES
    ]
    hidden = torch.cat(states)[drawn].float()
    head = model.lm_head.weight.detach().float()
    logits = hidden @ head.T
    result = {
        "model": options.model.name,
        "shape": list(head.shape),
        "row_norms": rounded(head.norm(dim=1).quantile(POINTS)),
        "states": [
            {
                "coordinates": rounded(state.quantile(POINTS)),
                "top_logits": rounded(row.topk(TOP).values),
                "logits": rounded(row.sort().values[:-TOP].quantile(POINTS)),
            }
            for state, row in zip(hidden, logits, strict=True)
        ],
    }
    OUT.write_text(json.dumps(result) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
