"""EAGLE-3 as the engine drives it: its own context, its steps, a lattice or a tree of them.

The lattice keeps one state per candidate. Candidates of a position are the tokens whose best path
from the anchor is likeliest; each is expanded along that path, and the edge from a to b is the
probability of b after the best path to a. The greedy chain's token is always among them and is
expanded along the greedy chain, so the chain of this lattice is the chain of the drafter's own
steps. The tree (`grow`) is EAGLE-2's: equal tokens under different parents stay apart.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from specengine.drafters.base import DeviceLattice
from specengine.drafters.candidates import top_candidates
from specengine.drafters.driven import (
    NetworkDrafter,
    as_lattice,
    require_positions,
    require_room,
)
from specengine.drafters.eagle3_network import Eagle3Network
from specengine.drafters.expansion import grown_tree
from specengine.drafters.vocabulary import DraftTarget
from specengine.errors import RequestError
from specengine.lattice import Lattice
from specengine.trees import DraftTree
from specengine.verify.attention_kernels import decoding_attention

BRANCHES = 8
"""Candidates per position, and nodes that a step expands; EAGLE-2's setting."""
_LONGEST = 64
"""Most positions of one draft."""
_CHUNK = 512
"""Context rows per pass: a whole prompt's scores at once would take gigabytes."""


class Eagle3State:
    """Keys and values of committed rows, then of the rows of one draft, allocated once.

    A row of context needs the token after its position. The newest position's is the anchor, which
    only `draft` knows, so its row is computed there and again once the token is committed.
    """

    def __init__(
        self, network: Eagle3Network, capacity: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        config = network.config
        rows = capacity + BRANCHES * _LONGEST
        shape = (config.num_key_value_heads, rows, config.head_dim)
        self.memory = (
            torch.empty(shape, dtype=dtype, device=device),
            torch.empty(shape, dtype=dtype, device=device),
        )
        self.capacity = capacity
        self.done = 0
        """Positions whose rows are in memory for good."""
        self.features = torch.empty(0, config.hidden_size, dtype=dtype, device=device)
        """[length - done, d], of the positions that are not."""
        self.tokens = torch.empty(0, dtype=torch.int64, device=device)
        """int64 [length - done], the tokens at those positions."""

    @property
    def length(self) -> int:
        """Committed positions."""
        return self.done + len(self.tokens)

    @length.setter
    def length(self, value: int) -> None:
        assert value == 0, "a state is emptied as a whole"
        self.done = 0
        self.features, self.tokens = self.features[:0], self.tokens[:0]


class Eagle3Drafter(NetworkDrafter):
    """A `specengine.drafters.base.Drafter`, and a `GrowingDrafter`; a draft takes one forward per
    position."""

    kind = "eagle3"
    network: Eagle3Network

    def __init__(self, network: Eagle3Network, target: DraftTarget) -> None:
        super().__init__(network, target, network.config.ttt_length)

    def new_state(self, capacity: int) -> Eagle3State:
        """Allocate a state for at most `capacity` context positions."""
        return Eagle3State(self.network, capacity, self.dtype, self.device)

    @torch.inference_mode()
    def extend(self, state: Eagle3State, features: torch.Tensor, tokens: NDArray[np.int64]) -> None:
        """Append committed positions; see `Drafter.extend`.

        Raises:
            RequestError: more positions than the state was allocated for.
        """
        require_room(state.length + len(features), state.capacity)
        own = self.network.features(features.to(self.dtype))
        state.features = torch.cat((state.features, own))
        fresh = torch.from_numpy(np.ascontiguousarray(tokens)).to(self.device)
        state.tokens = torch.cat((state.tokens, fresh))

    @property
    def candidates_per_position(self) -> int:
        """See `DeviceDrafter`."""
        return min(BRANCHES, self.vocabulary.size)

    def draft(self, state: Eagle3State, anchor: int, positions: int) -> Lattice:
        """See `Drafter.draft` and `draft_on_device`."""
        return self.draft_on_device(state, anchor, positions).on_host()

    @torch.inference_mode()
    def draft_on_device(self, state: Eagle3State, anchor: int, positions: int) -> DeviceLattice:
        """See `DeviceDrafter.draft_on_device` and the module.

        Raises:
            RequestError: no position, or more than 64.
            NumericError: non-finite logits.
        """
        steps = Steps(self, state, anchor, positions)
        count = self.candidates_per_position
        logits, hidden = steps.first()
        scores = logits.log_softmax(-1)
        total, ids = top_candidates(scores, count)
        total, ids = total[0], ids[0]
        rows, edges = [ids], [scores[:, ids].expand(count, -1)]
        parents = torch.zeros(count, dtype=torch.int64, device=self.device)
        for _ in range(1, positions):
            logits, hidden = steps.next(self.vocabulary.target_ids(ids), hidden, parents)
            scores = logits.log_softmax(-1)
            best, source = (total[:, None] + scores).max(0)
            # The greedy chain stands in slot 0; no other path may crowd it out of the lattice.
            follower = top_candidates(scores[:1], 1)[1][0]
            source[follower] = 0
            best[follower] = 1.0
            ids = top_candidates(best[None], count)[1][0]
            parents = source[ids]
            total = total[parents] + scores[parents, ids]
            rows.append(ids)
            edges.append(scores[:, ids])
        tokens = self.vocabulary.target_ids(torch.stack(rows))
        return as_lattice(tokens, torch.stack(edges), self.kind)

    @torch.inference_mode()
    def grow(self, state: Eagle3State, anchor: int, positions: int, nodes: int) -> DraftTree:
        """See `GrowingDrafter.grow`; EAGLE-2's expansion of the `BRANCHES` likeliest nodes.

        Raises:
            RequestError: no position, or more than 64.
            NumericError: non-finite logits.
        """
        steps = Steps(self, state, anchor, positions)
        branches = self.candidates_per_position
        return grown_tree(steps, self.vocabulary, anchor, positions, nodes, branches)


class Steps:
    """The forwards of one draft; rows of a step see the context and their own path."""

    def __init__(
        self, drafter: Eagle3Drafter, state: Eagle3State, anchor: int, positions: int
    ) -> None:
        require_positions(positions)
        if positions > _LONGEST:
            raise RequestError(
                f"is {positions}", where="drafted positions", fix=f"draft at most {_LONGEST}"
            )
        if state.length == 0:
            raise RequestError(
                "holds no context", where="drafter state", fix="extend it by the prompt first"
            )
        self._drafter, self._state, self._anchor = drafter, state, anchor
        self._paths: torch.Tensor | None = None
        self._rows = 0
        self._depth = 0

    def first(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Finish the context: logits float32 [1, size] and features [1, d] after the anchor."""
        state = self._state
        anchor = torch.tensor([self._anchor], device=self._drafter.device)
        tokens, done = torch.cat((state.tokens[1:], anchor)), state.done
        for begin in range(0, len(tokens), _CHUNK):
            span = slice(begin, begin + _CHUNK)
            positions = done + torch.arange(len(tokens), device=anchor.device)[span]
            slots = torch.arange(int(positions[-1]) + 1, device=anchor.device)
            head, hidden = self._forward(
                tokens[span], state.features[span], positions, done + begin,
                slots <= positions[:, None],
            )  # fmt: skip
        state.done = state.length - 1
        # Copies, so that a whole prompt's rows are not kept alive by their last.
        state.features, state.tokens = state.features[-1:].clone(), state.tokens[-1:].clone()
        return self._logits(head[-1:]), hidden[-1:]

    def next(
        self, tokens: torch.Tensor, hidden: torch.Tensor, parents: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """One step further.

        Args:
            tokens: int64 [k], the target's ids.
            hidden: [m, d], features that the step before returned.
            parents: int64 [k], the row of that step below which each token stands.

        Returns:
            Logits float32 [k, size] and features [k, d].
        """
        length, count = self._state.length, len(tokens)
        own = torch.eye(count, dtype=torch.bool, device=tokens.device)
        self._paths = own if self._paths is None else torch.cat((self._paths[parents], own), dim=1)
        context = torch.ones(count, length, dtype=torch.bool, device=tokens.device)
        positions = torch.full((count,), length + self._depth, device=tokens.device)
        head, features = self._forward(
            tokens, hidden[parents], positions, length + self._rows,
            torch.cat((context, self._paths), dim=1),
        )  # fmt: skip
        self._rows += count
        self._depth += 1
        return self._logits(head), features

    def _forward(
        self, tokens: torch.Tensor, features: torch.Tensor, positions: torch.Tensor, at: int,
        visible: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
        network = self._drafter.network
        window = network.config.window(0)
        if window is not None:
            slots = torch.arange(visible.shape[1], device=tokens.device)
            # Rows of a draft lie within the window of each other; only context falls out of it.
            far = positions[:, None] - slots >= window
            visible = visible & ~(far & (slots < self._state.length))
        embedded = self._drafter.vocabulary.embed(tokens).to(self._drafter.dtype)
        return network(
            embedded, features, positions,
            lambda *rows: _attend_memory(*rows, self._state.memory, at, visible),
        )  # fmt: skip

    def _logits(self, rows: torch.Tensor) -> torch.Tensor:
        return self._drafter.vocabulary.head(rows).float()


def _attend_memory(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor,
    memory: tuple[torch.Tensor, torch.Tensor], at: int, visible: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    """Keep the rows' keys and values, then attend to what each row may see.

    Args:
        query: [n, heads, D].
        keys: [n, kv_heads, D], like `values`; written into `memory`.
        values: as `keys`.
        memory: keys and values, each [kv_heads, capacity, D].
        at: slot of the first row.
        visible: bool [n, m], the slots below m that a row sees.

    Returns:
        [n, heads, D].
    """
    end, seen = at + len(query), visible.shape[1]
    memory[0][:, at:end] = keys.transpose(0, 1)
    memory[1][:, at:end] = values.transpose(0, 1)
    with decoding_attention():
        mixed = functional.scaled_dot_product_attention(
            query.transpose(0, 1)[None],
            memory[0][None, :, :seen],
            memory[1][None, :, :seen],
            attn_mask=visible,
            enable_gqa=True,
        )
    return mixed[0].transpose(0, 1)
