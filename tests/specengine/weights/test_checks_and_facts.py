"""Forged arrays are found before anything trusts them; costs add up."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from specengine.errors import CheckpointError
from specengine.weights import FORMATS, Packed, check, decode_checked, describe, encode

Natural = Callable[..., torch.Tensor]
Forge = Callable[[Packed], Packed]


def _changed(array: torch.Tensor, index: int | tuple[int, int], value: int) -> torch.Tensor:
    array = array.clone()
    array[index] = value
    return array


FORGERIES: dict[str, tuple[str, Forge]] = {
    "unknown format": ("unknown format", lambda p: replace(p, format="w9")),
    "no rows": ("shape", lambda p: replace(p, shape=(0, p.shape[1]))),
    "short records": ("records has", lambda p: replace(p, records=p.records[:-16])),
    "long records": (
        "records has",
        lambda p: replace(p, records=torch.cat((p.records, p.records[:16]))),
    ),
    "wrong dtype": ("dtype", lambda p: replace(p, scale=p.scale.double())),
    "odd scale": ("no window's", lambda p: replace(p, scale=p.scale * 1.5)),
    "negative scale": ("no window's", lambda p: replace(p, scale=-p.scale)),
    "scaled padding": ("padding", lambda p: replace(p, scale=p.scale + (p.scale == 0).float())),
    "short scale": ("scale has", lambda p: replace(p, scale=p.scale[:-1])),
    "offsets from 1": (
        "begin with 0",
        lambda p: replace(p, escape_offsets=_changed(p.escape_offsets, 0, 1)),
    ),
    "falling offsets": (
        "not ascending",
        lambda p: replace(p, escape_offsets=_changed(p.escape_offsets, 3, 2**30)),
    ),
    "missing escapes": ("escapes has", lambda p: replace(p, escapes=p.escapes[:-1])),
    "channel outside": (
        "channel outside",
        lambda p: replace(p, escapes=_changed(p.escapes, (0, 0), 200)),
    ),
    "input outside": (
        "outside its record",
        lambda p: replace(p, escapes=_changed(p.escapes, (0, 0), 9999 << 16)),
    ),
    "disorder": ("not in order", lambda p: replace(p, escapes=p.escapes[[1, 0]].repeat(100, 1))),
}


def _packed(name: str, natural: Natural) -> Packed:
    drawn = natural(200, 400)
    drawn[3, 7], drawn[3, 9], drawn[150, 399] = 500.0, 0.0, float("inf")
    return encode(drawn, name)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("kind", [kind for kind in FORGERIES if kind != "disorder"])
def test_forgeries_are_named(name: str, kind: str, natural: Natural) -> None:
    packed = _packed(name, natural)
    check(packed, "layer.weight")
    message, forge = FORGERIES[kind]
    with pytest.raises(CheckpointError, match=message) as caught:
        check(forge(packed), "layer.weight")
    assert caught.value.where == "layer.weight"


def test_disorder_is_named(natural: Natural) -> None:
    packed = _packed("w12", natural)
    first = int((packed.escape_offsets.diff() >= 2).nonzero()[0])
    start = int(packed.escape_offsets[first])
    swapped = packed.escapes.clone()
    swapped[[start, start + 1]] = swapped[[start + 1, start]]
    with pytest.raises(CheckpointError, match="not in order"):
        check(replace(packed, escapes=swapped), "w")


def test_sparse_records_cannot_lie_about_their_size(natural: Natural) -> None:
    packed = _packed("w11s", natural)
    assert packed.record_offsets is not None
    grown = packed.records.clone()
    grown[11264] = 255
    for forged, message in (
        (replace(packed, records=grown), "counts miss its size"),
        (replace(packed, record_offsets=None), "record_offsets is missing"),
        (replace(packed, record_offsets=packed.record_offsets // 2), "end at"),
    ):
        with pytest.raises(CheckpointError, match=message):
            check(forged, "w")


@pytest.mark.parametrize("name", FORMATS)
def test_wrong_substitutes_are_found(name: str, natural: Natural) -> None:
    packed = _packed(name, natural)
    forged = packed.escapes.clone()
    forged[0, 1] ^= 1 << 20
    with pytest.raises(CheckpointError, match="substitutes"):
        decode_checked(replace(packed, escapes=forged), "w")


@pytest.mark.parametrize("name", FORMATS)
def test_costs_add_up(name: str, matrix: torch.Tensor) -> None:
    packed = encode(matrix, name)
    facts = describe(packed)
    parts = facts.in_place + facts.lists + facts.escapes + facts.index + facts.padding
    assert facts.total == pytest.approx(parts)
    assert facts.total == pytest.approx(8 * packed.nbytes / matrix.numel())
    assert sum(facts.escaped.values()) == packed.escapes.shape[0]


def test_causes_of_escapes() -> None:
    drawn = torch.ones(1, 64).bfloat16()
    drawn[0, :6] = torch.tensor([0.0, 2.0**-130, 2.0**-60, 2.0**60, float("inf"), float("nan")])
    drawn[0, 6] = -float("inf")
    facts = describe(encode(drawn, "w12"))
    assert facts.escaped == {
        "zero": 1,
        "subnormal": 1,
        "small": 1,
        "crowded": 0,
        "large": 1,
        "not_finite": 3,
    }


def test_crowded_escapes_are_told_apart(natural: Natural) -> None:
    drawn = torch.cat((natural(128, 960), natural(128, 64, 1) * 2.0**-9), dim=1)
    assert describe(encode(drawn, "w11s")).escaped["crowded"] > 1000
