"""Stretches of all tensors of a shard are encoded in one stream; each tensor stays as if alone."""

import hashlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from specengine.errors import OptionError
from specengine.weights import decode, encode, registry
from specengine.weights.encode_folder import encode_folder
from specengine.weights.layout import TILE
from specengine.weights.manifest import Manifest
from specengine.weights.ordered import Workers
from specengine.weights.reader import EncodedFolder
from specengine.weights.verify_folder import verify_folder

Natural = Callable[..., torch.Tensor]
WIDTH, TILES = 128, 24
SHARD = "weights-00001-of-00001.safetensors"


@pytest.fixture
def tensors(natural: Natural) -> dict[str, torch.Tensor]:
    """In the order of their data: matrices that outgrow a format between such that do not."""
    noise = torch.randint(-(2**15), 2**15, (TILE * TILES, WIDTH), dtype=torch.int16)
    crowded = natural(TILE * TILES, WIDTH, 1)
    # A tenth of the weights in the lower half of the window: too many for the lists of w11s.
    crowded[:, ::10] *= 2.0**-9
    return {
        "a": natural(TILE * 5 + 3, WIDTH, 2),
        "b.noise": noise.view(torch.bfloat16),
        "c.crowded": crowded,
        "d": natural(TILE * 2, WIDTH, 3),
    }


@pytest.fixture
def source(tmp_path: Path, tensors: dict[str, torch.Tensor]) -> Path:
    (tmp_path / "source").mkdir()
    save_file(tensors, tmp_path / "source" / "model.safetensors")
    return tmp_path / "source"


def _encode(source: Path, out: Path, form: str, threads: int) -> Manifest:
    return encode_folder(source, out, form, threads=threads, report=lambda step: None)


@pytest.mark.parametrize("form", ["w12", "w11s"])
def test_outgrown_tensors_leave_their_neighbours_alone(
    form: str,
    source: Path,
    tmp_path: Path,
    tensors: dict[str, torch.Tensor],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = _encode(source, tmp_path / "whole", form, 1)
    monkeypatch.setattr(registry, "STRETCH", TILE * WIDTH)
    cut = _encode(source, tmp_path / "cut", form, 3)
    assert cut == whole
    files = [(tmp_path / run / SHARD).read_bytes() for run in ("whole", "cut")]
    assert files[0] == files[1]
    formats = {name: tensor.format for name, tensor in cut.tensors.items()}
    assert formats == {"a": form, "b.noise": "plain", "c.crowded": "w12", "d": form}
    assert verify_folder(tmp_path / "cut", threads=1, report=lambda step: None) == []
    for name, tensor in tensors.items():
        back = EncodedFolder(tmp_path / "cut").tensor(name)
        assert back.view(torch.int16).equal(tensor.view(torch.int16)), name
        octets = tensor.contiguous().view(torch.uint8).numpy().tobytes()
        assert cut.tensors[name].sha256 == hashlib.sha256(octets).hexdigest()


def test_the_rest_of_an_outgrown_tensor_is_not_encoded(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise = []
    form = registry.FORMATS["w12"]
    original = type(form).encode

    def counted(self: object, bits: torch.Tensor, room: torch.Tensor | None = None) -> object:
        packed = original(form, bits, room)
        noise.append(packed.escapes.shape[0] > bits.numel() // 2)
        return packed

    monkeypatch.setattr(registry, "STRETCH", TILE * WIDTH)
    monkeypatch.setattr(type(form), "encode", counted)
    _encode(source, tmp_path / "out", "w12", 1)
    # 16 bits a weight are exceeded after fewer than half of them; four pieces are under way then.
    assert 0 < sum(noise) < TILES // 2 + 4


@pytest.mark.parametrize("threads", [1, 3])
def test_pieces_are_loaded_in_their_order_by_one_thread(threads: int) -> None:
    loaded: list[tuple[int, int]] = []

    def load(piece: int) -> int:
        loaded.append((piece, threading.get_ident()))
        return -piece

    with Workers(threads) as workers:
        results = list(
            workers.staged(load, lambda value: (value, threading.get_ident()), range(30))
        )
    assert [value for value, _ in results] == [-piece for piece in range(30)]
    assert [piece for piece, _ in loaded] == list(range(30))
    (loader,) = {thread for _, thread in loaded}
    assert loader not in {thread for _, thread in results} | {threading.get_ident()}


def test_a_piece_that_cannot_be_loaded_ends_the_stream() -> None:
    def load(piece: int) -> int:
        return 12 // (3 - piece)

    with Workers(2) as workers, pytest.raises(ZeroDivisionError):
        list(workers.staged(load, lambda value: value, range(9)))


@pytest.mark.parametrize("form", ["w12", "w12n", "w11s"])
def test_results_keep_no_memory_that_is_used_again(form: str, natural: Natural) -> None:
    """Neither by the next call nor by another thread."""
    matrices = [natural(TILE * 3 + 5, 320, seed) for seed in range(6)]
    alone = [encode(matrix, form) for matrix in matrices]
    with ThreadPoolExecutor(3) as pool:
        beside = list(pool.map(encode, matrices, [form] * len(matrices)))
    for matrix, one, other in zip(matrices, alone, beside, strict=True):
        assert decode(one).view(torch.int16).equal(matrix.view(torch.int16))
        for name, array in one.arrays().items():
            assert array.equal(other.arrays()[name]), name


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_few_pieces_are_held(threads: int) -> None:
    drawn: list[int] = []
    pieces = (drawn.append(piece) or piece for piece in range(100))
    with Workers(threads) as workers:
        for done, result in enumerate(workers.map(lambda piece: -piece, pieces)):
            assert result == -done
            assert len(drawn) - done <= 2 * threads + 2
    assert len(drawn) == 100


@pytest.mark.parametrize("threads", [0, -1])
def test_no_thread_is_refused_before_anything_is_written(
    threads: int, source: Path, tmp_path: Path
) -> None:
    with pytest.raises(OptionError, match=f"threads: {threads} cannot work; ask for 1 or more"):
        _encode(source, tmp_path / "out", "w12", threads)
    assert not (tmp_path / "out").exists()
