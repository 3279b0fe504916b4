"""`python -m specengine.train answers|fit|evaluate`.

Torch is imported when a step begins: help and mistaken arguments are answered at once.
"""

import argparse
import json
import logging
import sys
from pathlib import Path

from specengine.drafters.records import KINDS
from specengine.errors import EngineError

_log = logging.getLogger("specengine.train")
_STEPS, _NO_LIMIT = 3000, 1_000_000


def main(arguments: list[str] | None = None) -> int:
    """Run one step; 0 on success, 1 on an error that the user can act on."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stdout)
    _log.setLevel(logging.INFO)
    options = _parser().parse_args(arguments)
    options.device = options.device or _best_device()
    try:
        options.run(options)
    except EngineError as error:
        _log.error("error: %s", error)
        return 1
    return 0


def _answers(options: argparse.Namespace) -> None:
    _make_answers(options, options.out, options.minutes)


def _make_answers(options: argparse.Namespace, out: Path, minutes: float | None) -> None:
    from specengine.train import answers as answering
    from specengine.train.prompts import public_prompts

    prompts = [row for path in options.prompts for row in answering.read_prompts(path)]
    prompts += public_prompts(
        options.gsm8k, options.mbpp, options.sources, limit=options.functions, seed=options.seed
    )
    plan = answering.AnswerPlan(
        rows=options.answer_rows,
        longest_prompt=options.longest_prompt,
        max_new_tokens=options.max_new_tokens,
        self_prompts=options.self_prompts,
        tempered=options.tempered,
        seconds=_seconds(minutes),
        seed=options.seed,
    )
    answering.make_answers(options.target, prompts, out, plan, options.device, _log.info)


def _fit(options: argparse.Namespace) -> None:
    from specengine.train.batches import BatchPlan
    from specengine.train.fitting import fit
    from specengine.train.loop import Schedule
    from specengine.train.shapes import DrafterShape

    data = options.data
    if not data:
        data = [options.out / "answers.npz"]
        if not data[0].exists():
            _make_answers(options, data[0], options.answer_minutes)
    shape = DrafterShape(
        kind=options.kind,
        layers=options.layers,
        taps=tuple(options.tap_layers) if options.tap_layers else options.taps,
        heads=options.heads,
        kv_heads=options.kv_heads,
        intermediate=options.intermediate,
        rank=options.rank,
        block_size=options.blocks[0],
        unrolled=options.unrolled,
        draft_vocabulary=options.draft_vocabulary,
    )
    plan = BatchPlan(
        sequences=options.sequences,
        rows=options.rows,
        blocks=tuple(options.blocks),
        decay=0.5,
        seed=options.seed,
    )
    schedule = Schedule(
        steps=options.steps or (_STEPS if options.minutes is None else _NO_LIMIT),
        seconds=_seconds(options.minutes),
        rate=options.rate,
        warmup=options.warmup,
    )
    fit(
        options.target, data, options.out, shape, plan, schedule, options.device,
        options.shard_bytes, _log.info, options.start, options.mask_token,
    )  # fmt: skip


def _evaluate(options: argparse.Namespace) -> None:
    from specengine.train.answers import read_prompts
    from specengine.train.evaluation import evaluate

    prompts = [row for path in options.prompts for row in read_prompts(path)]
    table = evaluate(
        options.target, options.drafter, prompts, options.device, _log.info,
        max_new_tokens=options.max_new_tokens, widths=tuple(options.positions),
        nodes=tuple(options.nodes), recording=options.recording,
    )  # fmt: skip
    options.out.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")


def _best_device() -> str:
    import torch

    return "cuda:0" if torch.cuda.is_available() else "cpu"


def _seconds(minutes: float | None) -> float | None:
    return None if minutes is None else 60 * minutes


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m specengine.train", description="Train a small drafter for a target."
    )
    steps = parser.add_subparsers(required=True)

    answers = steps.add_parser("answers", help="let the target answer prompts")
    answers.set_defaults(run=_answers)
    answers.add_argument("--out", type=Path, required=True, help="token shard (.npz)")
    _answer_options(answers, "--rows", self_prompts=0)

    fit_step = steps.add_parser("fit", help="train a drafter on answers")
    fit_step.set_defaults(run=_fit)
    _fit_options(fit_step)
    group = fit_step.add_argument_group("answers", "where --data is not given")
    group.add_argument("--answer-minutes", type=float, help="time box of the answers")
    _answer_options(group, "--answer-rows", self_prompts=1000)

    evaluation = steps.add_parser("evaluate", help="tau, accuracy and recall on prompts")
    evaluation.set_defaults(run=_evaluate)
    evaluation.add_argument("--drafter", type=Path, required=True, help="drafter folder")
    evaluation.add_argument(
        "--prompts", type=Path, nargs="+", required=True, help="JSONL: prompt, kind"
    )
    evaluation.add_argument("--out", type=Path, required=True, help="table (.json)")
    evaluation.add_argument("--max-new-tokens", type=int, default=384, help="of one answer")
    evaluation.add_argument(
        "--positions", type=int, nargs="+", default=[], help="drafted; else as trained"
    )
    evaluation.add_argument("--recording", type=Path, help="keep lattices for replay (.npz)")
    evaluation.add_argument(
        "--nodes", type=int, nargs="+", default=[16, 32], help="rows of best-first trees"
    )

    for step in (answers, fit_step, evaluation):
        step.add_argument("--target", type=Path, required=True, help="Transformers folder")
        step.add_argument("--device", help="the first GPU where there is one, else cpu")
        step.add_argument("--seed", type=int, default=0, help="of everything that is drawn")
        if step is not evaluation:
            step.add_argument("--minutes", type=float, help="time box")
    return parser


def _answer_options(parser: argparse._ActionsContainer, rows: str, *, self_prompts: int) -> None:
    add = parser.add_argument
    add("--prompts", type=Path, nargs="*", default=[], help="JSONL: prompt, kind")
    add("--gsm8k", type=Path, help="GSM8K train.jsonl")
    add("--mbpp", type=Path, help="mbpp.jsonl; its test range is left out")
    add("--sources", type=Path, help="Python source tree, for its docstrings")
    add("--functions", type=int, default=5000, help="docstrings at most")
    add("--self-prompts", type=int, default=self_prompts, help="own prompts per kind")
    add("--tempered", type=float, default=0.3, help="share again at T=0.7")
    add(rows, dest="answer_rows", type=int, default=1024, help="prompts answered at once")
    add("--longest-prompt", type=int, default=256, help="tokens")
    add("--max-new-tokens", type=int, default=512, help="of one answer")


def _fit_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--kind", choices=KINDS, default="dflash2", help="of the drafter (default: %(default)s)")
    add("--data", type=Path, nargs="+", default=[], help="token shards; else answers are made")
    add("--out", type=Path, required=True, help="drafter folder")
    add("--start", type=Path, help="drafter folder to begin with")
    add("--mask-token", type=int, help="vocabulary row that no text holds; else one is looked for")
    add("--layers", type=int, help="3; EAGLE-3 has 1")
    add("--taps", type=int, help="tapped layers, spread evenly: 5; EAGLE-3 3")
    add("--tap-layers", type=int, nargs="+", help="which layers are tapped, instead of --taps")
    add("--heads", type=int, help="as the target")
    add("--kv-heads", type=int, help="as the target")
    add("--intermediate", type=int, help="width of the MLPs; as the target")
    add("--rank", type=int, default=32, help="DFlash2's selector, DSpark's Markov head")
    add("--blocks", type=int, nargs="+", default=[8], help="tokens, anchor included, in turn")
    add("--unrolled", type=int, default=7, help="EAGLE-3's steps")
    add("--draft-vocabulary", type=int, help="tokens of EAGLE-3's own head; else the target's")
    add("--sequences", type=int, default=32, help="per step")
    add("--rows", type=int, default=1024, help="block rows per sequence and step")
    add("--steps", type=int, help=f"{_STEPS} where no time box is given")
    add("--rate", type=float, default=1e-3, help="highest learning rate")
    add("--warmup", type=int, default=200, help="steps in which the rate rises")
    add("--shard-bytes", type=int, default=16 * 2**20, help="largest file of weights")


if __name__ == "__main__":
    sys.exit(main())
