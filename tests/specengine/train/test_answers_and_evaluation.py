"""Generation against Transformers, counting of steps, prompts, and the commands before training."""

import json

import numpy as np
import pytest
import torch

from specengine.decoding.recorder import RecordedOutput
from specengine.train import __main__ as command_line
from specengine.train.answers import answer, encode_texts, read_prompts
from specengine.train.evaluation import Tally, oracle, replay, tally
from specengine.train.generation import BatchGenerator, Sampling, Stopwatch
from specengine.train.prompts import public_prompts
from specengine.train.shards import read_shard

PROMPTS = [[5, 6, 7], [8, 9, 10, 11, 12, 13, 14], [20], [30, 31, 32, 33]]


def test_greedy_batches_equal_generating_one_by_one(teacher):
    generator = BatchGenerator(teacher, 5, 64)
    for _ in range(2):  # the second time over a cache that is full of old keys
        rows = generator.generate(PROMPTS, Sampling(20))
        for prompt, row in zip(PROMPTS, rows, strict=True):
            whole = teacher.model.generate(
                torch.tensor([prompt]), max_new_tokens=20, do_sample=False, pad_token_id=0
            )
            assert row == whole[0, len(prompt) :].tolist()


def test_sampling_follows_the_distribution(teacher):
    generator = BatchGenerator(teacher, 1000, 8)
    torch.manual_seed(0)
    first = [row[0] for row in generator.generate([[5, 6, 7]] * 1000, Sampling(1, 1.0))]
    wanted = teacher.model(torch.tensor([[5, 6, 7]])).logits[0, -1].softmax(-1)
    counts = torch.bincount(torch.tensor(first), minlength=61)
    assert ((counts / 1000 - wanted).abs() < 0.05).all()


def test_a_time_box_ends_between_batches(teacher):
    generator = BatchGenerator(teacher, 1, 64)
    lines = []

    class Ticking(Stopwatch):
        def __init__(self):
            self.now = 13.0

        def left(self):
            self.now -= 3.0
            return self.now

    pairs = answer(generator, PROMPTS, Sampling(2), Ticking(), seed=0, report=lines.append)
    assert len(pairs) == 2
    assert "time box: 2 of 4" in lines[-1]


def test_long_prompts_are_dropped(teacher):
    rows = encode_texts(teacher.tokenizer, ["w5 w6", "w7 " * 40], 20)
    assert rows == [[3, 5, 6, 2, 4]]


def _lattices(answer_tokens, ranks, positions, candidates=4):
    """Lattices whose true token has the given rank at each place."""
    count = len(answer_tokens) - 1
    ids = np.empty((count, positions, candidates), dtype=np.int64)
    for place in range(count):
        for slot in range(positions):
            label = answer_tokens[min(place + 1 + slot, count)]
            row = [100 + slot * 10 + k for k in range(candidates)]
            if place + 1 + slot <= count and ranks[place] < candidates:
                row[ranks[place]] = label
            ids[place, slot] = row
    score = np.log(np.array([0.5, 0.25, 0.15, 0.1], dtype=np.float32))
    edge = np.broadcast_to(score, (count, positions, candidates, candidates)).copy()
    return RecordedOutput(np.array(answer_tokens), ids, edge)


def test_replay_counts_steps():
    tokens = list(range(10, 23))  # 12 tokens after the first
    perfect = _lattices(tokens, [0] * 12, 3)
    assert replay(perfect, "chain", 3, 4) == 3
    assert replay(perfect, "chain", 1, 2) == 6
    hopeless = _lattices(tokens, [9] * 12, 3)
    assert replay(hopeless, "chain", 3, 4) == oracle(hopeless, 3) == 12
    second = _lattices(tokens, [1] * 12, 3)
    assert replay(second, "chain", 3, 4) == 12
    assert replay(second, "best_first", 3, 1 + 4 + 16 + 64) == 3
    assert oracle(second, 3) == 3
    total = Tally()
    tally(total, second, (1, 3), (85,))
    table = total.table()
    assert table["tau"]["best_first/3/85"] == 4.0
    assert table["accuracy"] == [0.0, 0.0, 0.0]
    assert table["recall"] == [1.0, 1.0, 1.0]


def test_answers_of_one_token_count_for_nothing():
    total = Tally()
    empty = RecordedOutput(np.array([7]), np.zeros((0, 3, 0)), np.zeros((0, 3, 0, 0)))
    tally(total, empty, (3,), (8,))
    assert total.table() == {"tokens": 0, "tau": {}, "accuracy": [], "recall": []}


def test_public_prompts_leave_test_items_out(tmp_path):
    gsm8k, mbpp, sources = tmp_path / "g.jsonl", tmp_path / "m.jsonl", tmp_path / "src"
    gsm8k.write_text(json.dumps({"question": "How many?", "answer": "1"}) + "\n")
    rows = [
        {"task_id": task, "text": f"Task {task}.", "code": "def f(x):\r\n  return x",
         "test_list": ["assert f(1) == 1"]}
        for task in (10, 11, 510, 511)
    ]  # fmt: skip
    mbpp.write_text("".join(json.dumps(row) + "\n" for row in rows))
    sources.mkdir()
    doc = "Return the sum of two numbers, which may be anything that adds."
    (sources / "a.py").write_text(f'def add(a, b=1):\n    """{doc}"""\n    return a + b\n')
    (sources / "broken.py").write_text("def (:\n")
    prompts = public_prompts(gsm8k, mbpp, sources, limit=9, seed=0)
    texts = "\n".join(row["prompt"] for row in prompts)
    assert sorted({row["kind"] for row in prompts}) == ["function", "gsm8k", "mbpp"]
    assert "Task 10." in texts
    assert "Task 511." in texts
    assert "Task 11." not in texts
    assert "Task 510." not in texts
    assert f'```python\ndef add(a, b=1):\n    """ {doc}\n    """\n```' in texts
    assert "assert f(1) == 1" in texts


@pytest.mark.parametrize("line", ["[1]", '{"text": 1}', "{"])
def test_bad_prompt_files_are_refused(tmp_path, caplog, line):
    path = tmp_path / "p.jsonl"
    path.write_text(line + "\n")
    code = command_line.main(["answers", "--target", "x", "--out", "y", "--prompts", str(path)])
    assert code == 1
    assert "is not a prompt file" in caplog.text


def test_answers_are_greedy_ones_then_tempered_ones(teacher_folder, tmp_path):
    prompts = tmp_path / "p.jsonl"
    prompts.write_text(
        "".join(json.dumps({"kind": f"k{i % 2}", "prompt": f"w{i} w{i + 1}"}) + "\n"
                for i in range(5, 17))
    )  # fmt: skip
    assert [row["kind"] for row in read_prompts(prompts)][:2] == ["k1", "k0"]
    data = tmp_path / "a.npz"
    assert command_line.main(
        ["answers", "--target", str(teacher_folder), "--device", "cpu", "--out", str(data),
         "--prompts", str(prompts), "--rows", "8", "--self-prompts", "3", "--tempered", "0.5",
         "--longest-prompt", "64", "--max-new-tokens", "16"]
    ) == 0  # fmt: skip
    shard = read_shard(data)
    summary = json.loads(data.with_suffix(".json").read_text())
    assert summary["sha256"] == shard.sha256()
    assert summary["greedy_sequences"] >= 12
    assert len(shard) > summary["greedy_sequences"]
