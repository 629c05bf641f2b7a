"""Private tokens from public logits moved by the mean of clipped differences (InvisibleInk).

What is clipped is how far a record's prompt departs from the public prompt, so a bound near 1
does what clipping whole logits needs a bound near 10 for, and a batch without records writes
public text. Shape letters: R rows (prompts of all batches), n rows of one batch, V vocabulary,
A tokens of the public support, G active batches.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from dpsynth_assets.privacy.clipping import block_columns, column_blocks
from dpsynth_assets.privacy.cpu import is_plain, map_on_cpu_threads, nth_largest, plain_entries
from dpsynth_assets.privacy.difference_lattice import DifferenceLattice
from dpsynth_assets.privacy.errors import check_at_least
from dpsynth_assets.privacy.softmax_draws import draw_tokens
from dpsynth_assets.privacy.token_selection import (
    NextLogits,
    PrivateTokenMeter,
    SoftmaxOfSums,
    rows_by_batch,
)

if TYPE_CHECKING:
    import torch

_GATHERED_ENTRIES = 1 << 18
"""Logits of all batches' supports that are worked on together, in float64."""


@dataclass(frozen=True, kw_only=True)
class DifferenceTokenMechanism(SoftmaxOfSums):
    """Draws x ~ softmax((z_pub + Σ_z clip_C(z − z_pub) / s) / τ) over a public support.

    z and z_pub are log-probabilities given the support. Logits are defined up to a constant, and
    two prompts need not agree on it; a difference of raw logits could be all constant.

    Its clip bound C bounds each coordinate of a record's difference.

    Attributes:
        top_k: k of the public support (`public_support`, margin 2C/s); None for every token.

    **Privacy** Normalisation and clip read one row and public values, so a vector that comes or
    goes moves the scores by a vector in [−C, C]^A / (sτ), and the normaliser of the softmax moves
    all log-probabilities alike: range η = 2C/(sτ), as for clipped logits; 4C/(sτ) if one replaces
    another. The support is the same for neighbours. Differences are whole units of a lattice, added
    up without rounding (`DifferenceLattice`), and tokens have exactly the probabilities of the
    softmax (`softmax_draws`). Slack δ: normalised logits move by e − l with |e|, |l| <= δ, and
    clipping keeps each move between 0 and e − l: a range of 2δ, as there, and a little for the
    lattice (`DifferenceLattice.slack`).

    **Source** Vinod, Pillutla, Thakurta 2025, InvisibleInk: DClip and Top-k+, here with the fixed
    denominator s (errata: their reimplementation of the mean divides by the private |Z|).
    """

    top_k: int | None = None

    def __post_init__(self) -> None:
        """Refuses settings without a finite η or an empty support."""
        self.event(0)
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"Expected top_k >= 1 or None, got {self.top_k}.")

    @property
    def eta(self) -> float:
        """Bounded range of one draw."""
        slack = self._lattice.slack(self.batch.logit_slack)
        return replace(self.batch, logit_slack=slack).eta(self.clip_bound, self.temperature)

    @property
    def _lattice(self) -> DifferenceLattice:
        return DifferenceLattice(self.clip_bound, self.batch.expected_batch_size)

    @property
    def support_margin(self) -> float:
        """2C/s, public: how far one record can move two tokens against each other."""
        return 2.0 * self.clip_bound / self.batch.expected_batch_size

    def select(self, logits: NextLogits, meter: PrivateTokenMeter) -> np.ndarray:
        """Draws one token for each active batch.

        Args:
            logits: With public ones. A row with NaN or without a finite maximum on the support
                contributes zero differences.
            meter: Pays for the draws before any logit is read.

        Returns:
            (G,) int64 token ids, aligned with `active`.

        Raises:
            UnaccountedReleaseError: If a batch has no private token left.
            ValueError: If shapes disagree, or a public row allows no token.
        """
        meter.spend(logits.active)
        logits.check()
        public_logits = logits.compared
        rows_of = rows_by_batch(logits.batch_of_row, logits.active)
        supports = self.supports(public_logits, logits.allowed)
        if not supports:
            return np.zeros(0, dtype=np.int64)
        widest = max(len(support) for support in supports)
        together = len(logits.batch_of_row) * widest <= _GATHERED_ENTRIES

        def draw(own: slice) -> np.ndarray:
            draw_some = self._draw_together if together else self._draw_one
            return draw_some(logits.private, public_logits[own], rows_of[own], supports[own])

        size = len(supports) if together else 1
        parts = [slice(start, start + size) for start in range(0, len(supports), size)]
        drawn = map_on_cpu_threads(draw, parts, plain_entries(logits.private))
        return np.concatenate(drawn)

    def _draw_one(
        self,
        private_logits: "torch.Tensor",
        public_logits: "torch.Tensor",
        rows_of: "Sequence[torch.Tensor | slice]",
        supports: "Sequence[torch.Tensor]",
    ) -> np.ndarray:
        """Draws (1,) token of one batch, regardless of its support's width."""
        (distribution,) = _public_distributions(public_logits, supports)
        sums = self._lattice.public_units(distribution)
        sums += self._private_sums(private_logits, distribution, rows_of[0], supports[0])
        drawn = draw_tokens(sums.unsqueeze(0), self._divisor)
        return supports[0].cpu().numpy()[drawn]

    def _draw_together(
        self,
        private_logits: "torch.Tensor",
        public_logits: "torch.Tensor",
        rows_of: "Sequence[torch.Tensor | slice]",
        supports: "Sequence[torch.Tensor]",
    ) -> np.ndarray:
        """Draws (G,) tokens in one pass over the supports of all batches, filled to one width."""
        import torch
        from torch.nn.utils.rnn import pad_sequence

        tokens = pad_sequence(list(supports), batch_first=True, padding_value=-1)
        filler, tokens = tokens < 0, tokens.clamp_(min=0)
        distributions = _public_distributions(public_logits, supports)
        distribution = pad_sequence(distributions, batch_first=True)
        sums = self._lattice.public_units(distribution).masked_fill_(filler, -torch.inf)
        rows, owner = (each.to(tokens.device) for each in _flat_rows(rows_of))
        in_place = len(rows) == len(private_logits) and bool((rows[1:] > rows[:-1]).all())
        columns = tokens.index_select(0, owner)
        taken = (
            private_logits.gather(1, columns)  # a third of the time of the other
            if in_place
            else private_logits[rows.unsqueeze(1), columns]
        )
        ignored = filler.index_select(0, owner)
        own = taken.to(torch.float64, copy=True).masked_fill_(ignored, -torch.inf)
        maximum = own.amax(dim=1, keepdim=True)
        normalisers = self._lattice.rounded_normalisers(
            torch.exp(own.sub_(maximum)).sum(dim=1).log_(),
            own.shape[1],
            lambda row: taken[row, ~ignored[row]].to(torch.float64).cpu().numpy(),
        )
        ignored = ignored | ~torch.isfinite(maximum)
        differences = self._lattice.clipped(own, normalisers, distribution.index_select(0, owner))
        sums.index_add_(0, owner, differences.masked_fill_(ignored, 0.0))
        drawn = draw_tokens(sums, self._divisor)
        return tokens.cpu().numpy()[np.arange(len(drawn)), drawn]

    def support(self, public_row: "torch.Tensor", allowed: np.ndarray | None) -> "torch.Tensor":
        """Lists (A,) int64 tokens of the public support of (V,) public logits."""
        return self.supports(public_row.unsqueeze(0), allowed)[0]

    def supports(
        self, public_logits: "torch.Tensor", allowed: np.ndarray | None
    ) -> "list[torch.Tensor]":
        """Lists for each row of (G, V) public logits the (A,) int64 tokens of its support."""
        import torch

        if allowed is not None:
            mask = torch.from_numpy(np.asarray(allowed, dtype=bool)).to(public_logits.device)
            public_logits = public_logits.masked_fill(~mask, -torch.inf)
        supports = marked_tokens(public_support(public_logits, self.top_k, self.support_margin))
        if not all(map(len, supports)):
            raise ValueError("Expected a token both allowed and of finite public logit, got none.")
        return supports

    def private_scores(
        self,
        private_logits: "torch.Tensor",
        public_row: "torch.Tensor",
        rows: "torch.Tensor | slice",
        support: "torch.Tensor",
    ) -> "torch.Tensor":
        """Computes (A,) float64 scores of one batch. Private: only a draw from them may leave.

        Args:
            private_logits: (R, V).
            public_row: (V,), finite on the support.
            rows: (n,) int64 rows of the batch, n >= 0, or a slice of rows.
            support: (A,) int64 token ids.
        """
        (distribution,) = _public_distributions(
            public_row.to(private_logits.device).unsqueeze(0), [support]
        )
        sums = self._lattice.public_units(distribution)
        sums += self._private_sums(private_logits, distribution, rows, support)
        return sums / (self.batch.expected_batch_size * self.temperature)

    def _private_sums(
        self,
        private_logits: "torch.Tensor",
        distribution: "torch.Tensor",
        rows: "torch.Tensor | slice",
        support: "torch.Tensor",
    ) -> "torch.Tensor":
        """Computes (A,) float64 Σ clip_C(z − z_pub) of one batch, exact on the lattice."""
        import torch

        own = private_logits[rows]
        columns = None if len(support) == own.shape[1] else support
        if columns is not None and len(support) <= block_columns(len(own)):
            own, columns = own.index_select(1, support), None
        maximum = distribution.new_full((len(own),), -torch.inf)
        for _, block in column_blocks(own, columns):
            maximum = torch.maximum(maximum, block.amax(dim=1).to(torch.float64))
        usable = torch.isfinite(maximum)
        if not bool(usable.all()):
            own, maximum = own[usable], maximum[usable]
        weights = torch.zeros_like(maximum)
        for _, block in column_blocks(own, columns):
            weights += _shifted(block, maximum).exp_().sum(dim=1)
        normalisers = self._lattice.rounded_normalisers(
            weights.log_(), len(support), lambda row: _numbers(own[row], columns)
        )
        sums = torch.zeros_like(distribution)
        for part, block in column_blocks(own, columns):
            differences = self._lattice.clipped(
                _shifted(block, maximum), normalisers, distribution[part]
            )
            sums[part] = differences.sum(dim=0)
        return sums


def public_support(public_logits: "torch.Tensor", k: int | None, margin: float) -> "torch.Tensor":
    """Marks tokens whose public logit is at least the k-th largest less `margin` ("Top-k+").

    Args:
        public_logits: (..., V); −inf never joins the support.
        k: k >= 1, more than V means V; None marks every token of finite logit.
        margin: >= 0, public; 2C/s keeps every token that one record could lift to the k-th place.

    Returns:
        (..., V) bool.

    Raises:
        ValueError: If k or margin is outside its domain.

    **Privacy** A function of public logits alone, hence free.
    """
    import torch

    check_at_least(0, margin=margin)
    if k is not None and k < 1:
        raise ValueError(f"Expected k >= 1, got {k}.")
    k = None if k is None else min(k, public_logits.shape[-1])
    if is_plain(public_logits):
        return torch.from_numpy(_support_on_a_cpu(public_logits.numpy(), k, margin))
    if k is None:
        return torch.isfinite(public_logits)
    kth = public_logits.topk(k, dim=-1).values[..., -1:]
    near = public_logits.to(torch.float64) >= kth.to(torch.float64) - margin
    return near & torch.isfinite(public_logits)


def _support_on_a_cpu(public_logits: np.ndarray, k: int | None, margin: float) -> np.ndarray:
    """Does what `public_support` does with float32 logits in an array."""
    finite: np.ndarray = np.isfinite(public_logits)
    if k is None:
        return finite
    rows = public_logits.reshape(-1, public_logits.shape[-1])
    kth = np.array([nth_largest(row, k) for row in rows]).reshape(*public_logits.shape[:-1], 1)
    marked = np.greater_equal(public_logits, kth.astype(np.float64) - margin)
    return marked & finite


def marked_tokens(marked: "torch.Tensor") -> "list[torch.Tensor]":
    """Lists for each row of (G, V) bool the int64 tokens that are True."""
    import torch

    if marked.device.type == "cpu":
        return [torch.from_numpy(np.flatnonzero(row)) for row in marked.numpy()]
    return list(torch.nonzero(marked)[:, 1].split(marked.sum(dim=1).tolist()))


def _flat_rows(rows_of: "Sequence[torch.Tensor | slice]") -> "tuple[torch.Tensor, torch.Tensor]":
    """Lists the rows of all batches one after another, and the batch of each: (n,) int64 twice."""
    import torch

    each = [
        np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows.cpu().numpy()
        for rows in rows_of
    ]
    owners = np.repeat(np.arange(len(each)), [len(rows) for rows in each])
    return torch.from_numpy(np.concatenate(each)), torch.from_numpy(owners)


def _public_distributions(
    public_logits: "torch.Tensor", supports: "Sequence[torch.Tensor]"
) -> "list[torch.Tensor]":
    """Computes for each batch the (A,) float64 log-probabilities of its (A,) support.

    The same regardless of the private rows: what is computed does not look at them.
    """
    import torch

    distributions = []
    for row, support in zip(public_logits, supports, strict=True):
        logits = row[support].to(torch.float64)
        distributions.append(logits.sub_(torch.logsumexp(logits, 0)))
    return distributions


def _shifted(block: "torch.Tensor", maximum: "torch.Tensor") -> "torch.Tensor":
    """Computes (n, C) float64 logits less their row's maximum."""
    import torch

    return block.to(torch.float64, copy=True).sub_(maximum.unsqueeze(1))


def _numbers(row: "torch.Tensor", columns: "torch.Tensor | None") -> np.ndarray:
    """Reads one row's (A,) float64 logits."""
    import torch

    taken = row if columns is None else row[columns]
    return np.asarray(taken.to(torch.float64).cpu().numpy())
