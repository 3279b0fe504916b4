"""Mistaken arguments, damaged files, full disks: one line, and nothing that was there is lost."""

import dataclasses
import resource

import numpy as np
import pytest
import torch

from specengine.drafters.checkpoint import write_network
from specengine.errors import CheckpointError
from specengine.train import __main__ as command_line
from specengine.train.batches import BatchPlan, BatchSource
from specengine.train.loop import Schedule, train
from specengine.train.shapes import DrafterShape, drafter_config, fresh_network
from specengine.train.shards import pack, write_shard

PLAN = BatchPlan(sequences=4, rows=32, blocks=(8,), decay=0.5, seed=1)
FIT = ["fit", "--target", "TARGET", "--out", "OUT", "--data", "DATA"]
SMALL = ["--device", "cpu", "--sequences", "2", "--rows", "16", "--steps", "1", "--rank", "4"]
COUNTS = (
    "steps", "layers", "taps", "heads", "kv-heads", "intermediate", "rank", "blocks", "unrolled",
    "draft-vocabulary", "sequences", "rows", "shard-bytes",
)  # fmt: skip


@pytest.fixture
def make_network(teacher, shard):
    shape = DrafterShape(kind="dflash", layers=1, taps=2, block_size=8)
    return lambda: fresh_network(drafter_config(teacher, shape), teacher, shard, seed=0)


@pytest.fixture
def refused(caplog):
    """Runs a command that must fail, and returns its one line."""

    def run(*arguments):
        caplog.clear()
        assert command_line.main([str(argument) for argument in arguments]) == 1
        (line,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
        assert line.startswith("error: ")
        assert "\n" not in line
        return line

    return run


@pytest.fixture
def fit(teacher_folder, shard, tmp_path, refused):
    """Starts a training that must fail."""
    write_shard(shard, tmp_path / "data.npz")

    def run(*arguments, data=tmp_path / "data.npz", out=tmp_path / "out"):
        return refused(
            "fit", "--target", teacher_folder, "--data", data, "--out", out, *SMALL, *arguments
        )

    return run


@pytest.mark.parametrize("value", ["0", "-1", "2.5", "x", str(2**63)])
@pytest.mark.parametrize("name", COUNTS)
def test_counts_are_whole_numbers_above_zero(name, value, refused):
    assert f"argument --{name}" in refused(*FIT, f"--{name}", value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("minutes", value) for value in ("0", "-1", "nan", "inf")),
        *(("rate", value) for value in ("0", "-1", "nan", "inf")),
        *((name, "-1") for name in ("warmup", "seed", "mask-token", "tap-layers", "functions")),
        *(("tempered", value) for value in ("-0.1", "1.1", "nan")),
        ("blocks", "1"),
        ("kind", "medusa"),
    ],
)
def test_numbers_lie_in_their_ranges(name, value, refused):
    assert f"argument --{name}" in refused(*FIT, f"--{name}", value)


def test_missing_and_unknown_arguments(refused):
    assert "--target" in refused("fit", "--out", "x")
    assert "--foo" in refused(*FIT, "--foo")
    assert "arguments are required" in refused()
    assert "'cuda:99'" in refused(*FIT, "--device", "cuda:99")
    assert "'nothing'" in refused(*FIT, "--device", "nothing")


def test_what_does_not_fit_the_target_is_named(fit, tmp_path):
    write_shard(pack([([5, 6], [7, 300, 8])] * 4), tmp_path / "other.npz")
    assert "tokens 5 to 300, the target has 61" in fit(data=tmp_path / "other.npz")
    assert "taps: are 6, and 5" in fit("--taps", 6)
    assert "outside 61 rows" in fit("--mask-token", 61)


def test_a_drafter_of_another_shape_is_no_start(fit, teacher_folder, tmp_path):
    given = ["--target", teacher_folder, "--data", tmp_path / "data.npz", *SMALL]
    assert command_line.main([*map(str, ["fit", "--kind", "dflash", "--out", tmp_path / "d"]),
                              *map(str, given)]) == 0  # fmt: skip
    start = ["--start", tmp_path / "d"]
    assert "a dflash drafter of another shape than the dspark one" in fit(
        "--kind", "dspark", *start
    )
    assert "tensor 'layers.0." in fit("--kind", "dflash", "--intermediate", 8, *start)


@pytest.mark.parametrize("place", ["file", "file/under"])
def test_a_place_that_cannot_be_written_is_refused_before_training(place, fit, tmp_path, caplog):
    (tmp_path / "file").write_text("", encoding="utf-8")
    assert str(tmp_path / "file") in fit(out=tmp_path / place)
    assert "step 1" not in caplog.text


@pytest.mark.parametrize(
    "damage",
    [
        {"offsets": np.array([0, 9])},
        {"offsets": np.zeros(9)},
        {"prompts": np.full(8, 99)},
        {"prompts": np.full(8, -1)},
        {"tokens": np.zeros((4, 4), dtype=np.int32)},
        {"tokens": np.array(["a"])},
    ],
)
def test_forged_shards_are_refused(damage, fit, shard, tmp_path):
    fields = {"tokens": shard.tokens, "offsets": shard.offsets, "prompts": shard.prompts}
    np.savez(tmp_path / "forged.npz", **fields | damage)
    assert "is not a token shard" in fit(data=tmp_path / "forged.npz")


@pytest.mark.parametrize("kept", [0, 4, 300, -20])
def test_cut_shards_are_refused(kept, fit, tmp_path):
    (tmp_path / "cut.npz").write_bytes((tmp_path / "data.npz").read_bytes()[:kept])
    assert "is not a token shard" in fit(data=tmp_path / "cut.npz")


@pytest.mark.parametrize(
    "content", [b"", b"hi\n", None, {"step": 1}, [1], {"step": 1, "network": 2}]
)
def test_damaged_checkpoints_are_refused(content, teacher, shard, tmp_path, make_network):
    path = tmp_path / "c.pt"
    if content is None:
        train(make_network(), teacher, BatchSource(shard, PLAN), Schedule(steps=1), path, str)
        path.write_bytes(path.read_bytes()[:3000])
    elif isinstance(content, bytes):
        path.write_bytes(content)
    else:
        torch.save(content, path)
    with pytest.raises(CheckpointError, match="no checkpoint of a training"):
        train(make_network(), teacher, BatchSource(shard, PLAN), Schedule(steps=2), path, str)


@pytest.fixture
def small_disk():
    """Sets the size in bytes beyond which no file grows."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_weights_on_a_full_disk(small_disk, tmp_path, make_network):
    network = make_network()
    small_disk(20_000)
    with pytest.raises(CheckpointError, match="free disk space"):
        write_network(network, network.config, tmp_path, shard_bytes=2**24)
    assert not (tmp_path / "config.json").exists()


def test_a_full_disk_leaves_the_checkpoint_before(
    small_disk, teacher, shard, tmp_path, make_network
):
    path, source = tmp_path / "c.pt", BatchSource(shard, PLAN)
    train(make_network(), teacher, source, Schedule(steps=1), path, str)
    before = path.read_bytes()
    small_disk(20_000)
    with pytest.raises(CheckpointError, match="free disk space"):
        train(make_network(), teacher, source, Schedule(steps=2), path, str)
    assert [entry.name for entry in tmp_path.iterdir()] == ["c.pt"]
    assert path.read_bytes() == before


def test_checkpoints_come_by_the_clock_as_well(teacher, shard, tmp_path, make_network):
    class Stopped(BatchSource):
        def _members(self, step):
            if step == 3:
                raise KeyboardInterrupt
            return super()._members(step)

    schedule = dataclasses.replace(Schedule(steps=9), save_seconds=0.0)
    with pytest.raises(KeyboardInterrupt):
        train(make_network(), teacher, Stopped(shard, PLAN), schedule, tmp_path / "c.pt", str)
    assert torch.load(tmp_path / "c.pt", weights_only=True)["step"] == 3


def test_an_interrupt_is_one_line(monkeypatch, caplog):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(command_line, "_fit", interrupted)
    assert command_line.main([*FIT, "--device", "cpu"]) == 130
    assert "interrupted" in caplog.text
