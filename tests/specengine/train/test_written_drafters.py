"""One command per kind: what it writes loads strictly, and drafts without changing tokens."""

import json

import pytest

from specengine.decoding.engine import Engine
from specengine.drafters import load_drafter
from specengine.models import load_target
from specengine.train import __main__ as command_line
from specengine.train.shards import read_shard, write_shard
from specpilot.costmodel.replay_files import read_recordings

KINDS = ("dflash", "dflash2", "dspark", "eagle3")
SMALL = [
    "--taps", "2", "--rank", "4", "--blocks", "4", "8", "--unrolled", "3", "--sequences", "4",
    "--rows", "16", "--steps", "20", "--rate", "5e-3", "--warmup", "2", "--intermediate", "32",
    "--draft-vocabulary", "40",
]  # fmt: skip


def _fit(kind, target, out, *more):
    return command_line.main(
        ["fit", "--kind", kind, "--target", str(target), "--device", "cpu", "--out", str(out),
         *SMALL, *more]
    )  # fmt: skip


def _prompts(path, numbers):
    rows = ({"kind": f"k{i % 2}", "prompt": f"w{i} w{i + 1}"} for i in numbers)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module", params=KINDS)
def written(request, teacher_folder, tmp_path_factory):
    """A kind and the folder that its training wrote, answers included."""
    out = tmp_path_factory.mktemp(request.param)
    prompts = _prompts(out / "p.jsonl", range(5, 11))
    made = ["--prompts", str(prompts), "--self-prompts", "0", "--answer-rows", "9",
            "--max-new-tokens", "12"]  # fmt: skip
    assert _fit(request.param, teacher_folder, out, *made) == 0
    return request.param, out


def _decode(engine, prompt, count=24):
    session = engine.start(prompt, count)
    tokens = []
    while session.finish_reason is None:
        tokens += session.step()
    return tokens


def test_what_is_written_decodes_without_changing_tokens(written, teacher_folder):
    kind, out = written
    target = load_target(teacher_folder, dtype="float32")
    drafter = load_drafter(kind, out, target)
    target.taps = drafter.taps
    assert drafter.trained_positions == 3
    plain = Engine(target, None)
    engine = Engine(target, drafter)
    trees = [("chain", 0), ("best_first", 9), *([("own", 9)] if kind == "eagle3" else [])]
    for tree, nodes in trees:
        variant = engine.variant(tree=tree, nodes=nodes)
        for prompt in ([5, 6, 7], [8, 9, 10, 11, 12, 13, 14]):
            assert _decode(variant, prompt) == _decode(plain, prompt)
        assert variant.counters.drafted_tokens > 0


def test_the_record_of_the_run_names_what_it_was_given(written):
    kind, out = written
    facts = json.loads((out / "training.json").read_text())
    shard = read_shard(out / "answers.npz")
    assert facts["kind"] == kind
    assert facts["steps"] == facts["schedule"]["steps"] == 20
    assert facts["data"][0]["sha256"] == shard.sha256()
    assert kind == "eagle3" or facts["shape"]["mask_token_id"] not in shard.token_set()
    assert ("draft_vocabulary_share" in facts) == (kind == "eagle3")


def test_evaluation_replays_the_live_loop(written, teacher_folder, tmp_path):
    kind, out = written
    prompts = _prompts(tmp_path / "p.jsonl", range(5, 9))
    table, recording = tmp_path / "t.json", tmp_path / "r.npz"
    assert command_line.main(
        ["evaluate", "--target", str(teacher_folder), "--device", "cpu", "--drafter", str(out),
         "--prompts", str(prompts), "--out", str(table), "--max-new-tokens", "16",
         "--nodes", "4", "8", "--recording", str(recording)]
    ) == 0  # fmt: skip
    result = json.loads(table.read_text())
    assert result["drafter"] == kind
    assert sorted(result["benchmarks"]) == ["k0", "k1"]
    for part in result["benchmarks"].values():
        tau = part["tau"]
        assert part["requests"] == 2
        assert min(tau["chain/3"], tau["best_first/3/4"]) >= 1.0
        assert max(tau["chain/3"], tau["best_first/3/8"]) <= tau["oracle/3"]
        assert len(part["accuracy"]) == len(part["recall"]) == 3
        # The same tree on the same lattices, by the engine and by replay; the engine stops drafting
        # where the request's last tokens leave no room, which changes no step.
        assert tau["live/3/8"] == tau["best_first/3/8"]

    parts = read_recordings(recording).recordings
    assert [part.request_id for part in parts] == ["k0/0", "k0/1", "k1/0", "k1/1"]
    tokens = sum(len(part.tokens) - 1 for part in parts)
    assert tokens == sum(part["tokens"] for part in result["benchmarks"].values())


def test_data_and_drafters_may_be_given(teacher_folder, tmp_path, shard):
    data = tmp_path / "a.npz"
    write_shard(shard, data)
    first, second = tmp_path / "first", tmp_path / "second"
    given = ["--data", str(data), str(data), "--mask-token", "3"]
    assert _fit("dflash", teacher_folder, first, *given) == 0
    assert not (first / "answers.npz").exists()
    assert _fit("dflash", teacher_folder, second, *given, "--start", str(first)) == 0
    facts = json.loads((second / "training.json").read_text())
    assert [part["sequences"] for part in facts["data"]] == [8, 8]
    config = json.loads((second / "config.json").read_text())
    assert config["dflash_config"]["mask_token_id"] == 3


def test_errors_are_one_line(teacher_folder, tmp_path, caplog):
    data = tmp_path / "a.npz"
    assert _fit("dspark", teacher_folder, tmp_path / "d", "--data", str(data)) == 1
    assert "is not a token shard" in caplog.text
    assert not (tmp_path / "d" / "config.json").exists()
