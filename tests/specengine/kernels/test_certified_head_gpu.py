"""Every path of the certified head on a Hopper GPU, against exact logits in plain torch."""

import pytest
import torch

from specengine.kernels import certified_head, ops
from specengine.kernels import packed_linear as kernels
from specengine.weights import encode_head

HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not HOPPER, reason="needs a Hopper GPU"),
]

SHAPES = [(300, 520), (5000, 2048), (49152, 576), (129, 5120), (130, 16)]


def poison(monkeypatch):
    """Scratch that starts as NaN or -1, so that unwritten words are seen."""
    empty = torch.empty

    def filled(*shape, **options):
        tensor = empty(*shape, **options)
        return tensor.fill_(torch.nan if tensor.is_floating_point() else -1)

    monkeypatch.setattr(torch, "empty", filled)


class Case:
    def __init__(self, head, hidden):
        self.head, self.hidden = head.cuda(), hidden.cuda()
        copy = encode_head(self.head)
        weights = kernels.Weights("e2m5", copy.copy.records, copy.copy.scale)
        self.whole = certified_head.Head(self.head, weights, copy.residual_norm, copy.weight_norm)
        self.logits = certified_head.exact_logits(self.hidden, self.head)

    def settle(self, certify, rows=None):
        hidden = self.hidden if rows is None else self.hidden[rows].contiguous()
        tokens = torch.full((hidden.shape[0],), -1, device="cuda")
        counts = torch.full_like(tokens, -1, dtype=torch.int32)
        certified_head.argmax(hidden, self.whole, tokens, counts, certify)
        return tokens, counts


@pytest.fixture(scope="module", params=SHAPES, ids=lambda shape: f"{shape[0]}x{shape[1]}")
def shape(request):
    return request.param


@pytest.fixture(scope="module", params=["peaked", "near_ties", "not_numbers", "extremes"])
def case(request, heads, shape):
    return Case(*getattr(heads, request.param)(*shape))


@pytest.mark.parametrize("certify", [True, False])
def test_the_argmax_never_changes(case, certify, monkeypatch):
    poison(monkeypatch)
    expected = case.logits.cpu().argmax(1)
    tokens, counts = case.settle(certify)
    assert torch.equal(tokens.cpu(), expected)
    assert (counts >= 1).all()
    if not certify:
        assert (counts == case.head.shape[0]).all()
    for row in range(case.hidden.shape[0]):
        assert case.settle(certify, [row])[0].item() == expected[row]


def test_few_rows_of_a_peaked_head_are_read(heads):
    case = Case(*heads.peaked(49152, 576))
    tokens, counts = case.settle(True)
    assert torch.equal(tokens.cpu(), case.logits.cpu().argmax(1))
    assert (counts < 400).all()


def test_a_flat_head_is_read_whole_and_only_for_its_state(heads):
    case = Case(*heads.peaked(49152, 576))
    case.hidden[1] = 0
    tokens, counts = case.settle(True)
    assert tokens[1] == 0
    assert counts[1] == 49152
    assert (counts[2:] < 400).all()


def test_a_sample_that_misleads_costs_time_only(heads):
    head, hidden = heads.peaked(49152, 576)
    head.view(384, 128, 576)[::32] = 0  # the sampled tiles: none of their rows can be excluded
    case = Case(head, hidden)
    tokens, counts = case.settle(True)
    assert torch.equal(tokens.cpu(), case.logits.cpu().argmax(1))
    assert (counts == 49152).all()


def test_sixty_four_states_and_more(heads):
    case = Case(heads.draw(5000, 2048), heads.draw(150, 2048, seed=1))
    expected = case.logits.argmax(1)
    assert torch.equal(case.settle(True, slice(0, 64))[0], expected[:64])
    whole = case.whole
    given = (whole.copy.records, whole.copy.scale, whole.residual_norm, whole.weight_norm)
    tokens, counts = ops.certified_argmax(case.hidden.view(3, 50, 2048), case.head, *given)
    assert torch.equal(tokens.flatten(), expected)
    assert counts.shape == (3, 50)


def test_a_hundred_runs_give_the_same_tokens(heads):
    case = Case(*heads.near_ties(5000, 2048))
    first = case.settle(True)
    for _ in range(100):
        assert all(torch.equal(a, b) for a, b in zip(case.settle(True), first, strict=True))


def test_a_graph_replays_with_other_states(heads):
    case = Case(*heads.peaked(49152, 576))
    hidden = case.hidden[:1].clone()
    tokens = torch.full((1,), -1, device="cuda")
    counts = torch.full((1,), -1, dtype=torch.int32, device="cuda")
    certified_head.argmax(hidden, case.whole, tokens, counts, True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        certified_head.argmax(hidden, case.whole, tokens, counts, True)
    expected = case.logits.argmax(1)
    for row in (*range(case.hidden.shape[0]), 0):
        hidden.copy_(case.hidden[row : row + 1])
        tokens.fill_(-1)
        graph.replay()
        assert tokens.item() == expected[row]
    hidden.zero_()
    graph.replay()
    assert (tokens.item(), counts.item()) == (0, 49152)
