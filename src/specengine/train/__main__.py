"""`python -m specengine.train answers|fit|evaluate`."""

import argparse
import json
import logging
import sys
from pathlib import Path

import torch

from specengine.errors import EngineError
from specengine.train import commands
from specengine.train.batches import BatchPlan
from specengine.train.loop import Schedule
from specengine.train.prompts import public_prompts

_log = logging.getLogger("specengine.train")


def main(arguments: list[str] | None = None) -> int:
    """Run one step; 0 on success, 1 on an error that the user can act on."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stdout)
    _log.setLevel(logging.INFO)
    options = _parser().parse_args(arguments)
    try:
        options.run(options)
    except EngineError as error:
        _log.error("error: %s", error)
        return 1
    return 0


def _answers(options: argparse.Namespace) -> None:
    prompts = [row for path in options.prompts for row in commands.read_prompts(path)]
    prompts += public_prompts(
        options.gsm8k, options.mbpp, options.sources, limit=options.functions, seed=options.seed
    )
    plan = commands.AnswerPlan(
        rows=options.rows,
        longest_prompt=options.longest_prompt,
        max_new_tokens=options.max_new_tokens,
        self_prompts=options.self_prompts,
        tempered=options.tempered,
        seconds=_seconds(options.minutes),
        seed=options.seed,
    )
    commands.make_answers(options.target, prompts, options.out, plan, options.device, _log.info)


def _fit(options: argparse.Namespace) -> None:
    shape = commands.DrafterShape(
        layers=options.layers,
        taps=options.taps,
        selector_rank=options.selector_rank,
        block_size=options.blocks[0],
        mask_token_id=options.mask_token,
    )
    plan = BatchPlan(
        sequences=options.sequences,
        rows=options.rows,
        blocks=tuple(options.blocks),
        decay=0.5,
        seed=options.seed,
    )
    schedule = Schedule(
        steps=options.steps,
        seconds=_seconds(options.minutes),
        rate=options.rate,
        warmup=options.warmup,
    )
    commands.fit(
        options.target, options.data, options.out, shape, plan, schedule, options.device,
        options.shard_bytes, _log.info, options.start,
    )  # fmt: skip


def _evaluate(options: argparse.Namespace) -> None:
    prompts = [row for path in options.prompts for row in commands.read_prompts(path)]
    table = commands.evaluate(
        options.target, options.drafter, prompts, options.device, _log.info,
        max_new_tokens=options.max_new_tokens, widths=tuple(options.positions),
        nodes=tuple(options.nodes),
    )  # fmt: skip
    options.out.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")


def _seconds(minutes: float | None) -> float | None:
    return None if minutes is None else 60 * minutes


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m specengine.train", description=__doc__)
    steps = parser.add_subparsers(required=True)
    device = "cuda" if torch.cuda.is_available() else "cpu"

    answers = steps.add_parser("answers", help="let the target answer prompts")
    answers.set_defaults(run=_answers)
    answers.add_argument("--out", type=Path, required=True, help="token shard (.npz)")
    answers.add_argument("--prompts", type=Path, nargs="*", default=[], help="JSONL: prompt, kind")
    answers.add_argument("--gsm8k", type=Path, help="GSM8K train.jsonl")
    answers.add_argument("--mbpp", type=Path, help="mbpp.jsonl; its test range is left out")
    answers.add_argument("--sources", type=Path, help="Python source tree, for its docstrings")
    answers.add_argument("--functions", type=int, default=5000, help="docstrings at most")
    answers.add_argument("--self-prompts", type=int, default=0, help="own prompts per kind")
    answers.add_argument("--tempered", type=float, default=0.3, help="share again at T=0.7")
    answers.add_argument("--rows", type=int, default=1024, help="prompts answered at once")
    answers.add_argument("--longest-prompt", type=int, default=256, help="tokens")
    answers.add_argument("--max-new-tokens", type=int, default=512)

    fit = steps.add_parser("fit", help="train a drafter on answers")
    fit.set_defaults(run=_fit)
    fit.add_argument("--data", type=Path, nargs="+", required=True, help="token shards")
    fit.add_argument("--out", type=Path, required=True, help="drafter folder")
    fit.add_argument("--start", type=Path, help="drafter folder to begin with")
    fit.add_argument("--mask-token", type=int, required=True, help="vocabulary row never used")
    fit.add_argument("--layers", type=int, default=3)
    fit.add_argument("--taps", type=int, default=5)
    fit.add_argument("--selector-rank", type=int, default=32)
    fit.add_argument("--blocks", type=int, nargs="+", default=[8], help="rows per block, in turn")
    fit.add_argument("--sequences", type=int, default=32, help="per step")
    fit.add_argument("--rows", type=int, default=1024, help="block rows per sequence and step")
    fit.add_argument("--steps", type=int, default=1_000_000)
    fit.add_argument("--rate", type=float, default=1e-3)
    fit.add_argument("--warmup", type=int, default=200)
    fit.add_argument("--shard-bytes", type=int, default=16 * 2**20)

    evaluate = steps.add_parser("evaluate", help="tau, accuracy and recall on prompts")
    evaluate.set_defaults(run=_evaluate)
    evaluate.add_argument("--drafter", type=Path, required=True)
    evaluate.add_argument("--prompts", type=Path, nargs="+", required=True)
    evaluate.add_argument("--out", type=Path, required=True, help="table (.json)")
    evaluate.add_argument("--max-new-tokens", type=int, default=384)
    evaluate.add_argument("--positions", type=int, nargs="+", default=[7, 15])
    evaluate.add_argument("--nodes", type=int, nargs="+", default=[16, 32])

    for step in (answers, fit, evaluate):
        step.add_argument("--target", type=Path, required=True, help="Transformers folder")
        step.add_argument("--device", default=device)
        step.add_argument("--seed", type=int, default=0)
        if step is not evaluate:
            step.add_argument("--minutes", type=float, help="time box")
    return parser


if __name__ == "__main__":
    sys.exit(main())
