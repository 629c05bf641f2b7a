"""Pictures of an evolution: who won the votes, and how rounds converge. All of it is released.

Everything is read off the released file of generations (`methods.evolution.population`) and, for
the Fréchet distance, off public text.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from dpsynth_assets.report.plots import COLORS, line_styles, new_axes, shortened, to_png

if TYPE_CHECKING:
    import polars as pl

TITLES = {
    "votes_by_rank": "Released votes of the candidates, by rank, a line a round",
    "votes_by_label": "Released votes of the last round, by label",
    "votes_entropy": "Entropy of the released votes, round by round",
    "survivors_by_birth": "Survivors of each round, by the round that wrote them",
    "frechet_distance": "Fréchet distance of the survivors to public text, round by round",
}
"""Captions by name of a picture."""

_SYMLOG_BELOW = 10
_MOST_PER_LABEL = 60
_MOST_LABELS = 12


def evolution_pictures(
    generations: "pl.DataFrame",
    labels: Sequence[str],
    entropies: Sequence[float],
    *,
    noise_std: float | None = None,
    distances: Sequence[float] | None = None,
) -> dict[str, bytes]:
    """PNG pictures by name.

    Args:
        generations: The released file.
        labels: Label values by number.
        entropies: Entropy of each round's votes, in bits.
        noise_std: Standard deviation of the votes' noise; None where votes have no noise of
            their own.
        distances: Fréchet distance of each round's survivors to public text, if it was computed.
    """
    pictures = {
        "votes_by_rank": votes_by_rank_plot(generations, noise_std),
        "votes_by_label": votes_by_label_plot(generations, labels, noise_std),
    }
    if len(entropies) > 1:  # Of one round, nothing is drawn against rounds.
        pictures["votes_entropy"] = round_plot({"entropy": entropies}, "bits")
        pictures["survivors_by_birth"] = survivors_by_birth_plot(generations)
    if distances is not None and len(distances) > 1:
        pictures["frechet_distance"] = round_plot({"survivors": distances}, "Fréchet distance")
    return pictures


def votes_by_rank_plot(generations: "pl.DataFrame", noise_std: float | None) -> bytes:
    """Votes against rank; within the grey band two standard deviations of noise lie."""
    axes = new_axes(width=6.4, height=3.2)
    rounds = generations.partition_by("iteration", maintain_order=True)
    names = (f"round {number}" for number in range(1, len(rounds) + 1))
    for line, frame in zip(line_styles(names), rounds, strict=True):
        votes = np.sort(frame["votes"].to_numpy())[::-1]
        axes.plot(np.arange(1, len(votes) + 1), votes, linewidth=1.2, **line)
    _noise_band(axes, noise_std)
    axes.set_yscale("symlog", linthresh=_SYMLOG_BELOW)
    return to_png(axes, len(rounds), xlabel="candidate, most votes first", ylabel="released votes")


def votes_by_label_plot(
    generations: "pl.DataFrame", labels: Sequence[str], noise_std: float | None
) -> bytes:
    """Bars of the last round's best candidates of each label; survivors stand out.

    **Source** SecPE, Figure 4.
    """
    axes = new_axes(width=7.0, height=3.2)
    last = generations.filter(generations["iteration"] == generations["iteration"].max())
    shown = list(range(min(len(labels), _MOST_LABELS)))
    start, middles = 0, []
    for number in shown:
        of_label = last.filter(last["label"] == number).sort("votes", descending=True)
        of_label = of_label.head(max(4, _MOST_PER_LABEL // max(1, len(shown)) * 2))
        places = np.arange(start, start + of_label.height)
        survived = (of_label["survived"] > 0).to_numpy()
        colors = [COLORS[0] if alive else COLORS[1] for alive in survived.tolist()]
        axes.bar(places, of_label["votes"].to_numpy(), width=0.9, color=colors)
        middles.append(places.mean() if len(places) else start)
        start += of_label.height + 2
    _noise_band(axes, noise_std)
    axes.axhline(0, color="#444444", linewidth=0.8)
    names = [shortened(labels[number] or "all", 14) for number in shown]
    axes.set_xticks(middles, names, rotation=20 if len(shown) > 4 else 0)
    axes.grid(visible=False, axis="x")
    return to_png(axes, xlabel="label; survivors blue, others orange", ylabel="released votes")


def survivors_by_birth_plot(generations: "pl.DataFrame") -> bytes:
    """Stacked bars: how many survivors of a round were written in which round."""
    axes = new_axes(width=6.0, height=3.2)
    alive = generations.filter(generations["survived"] > 0)
    rounds = sorted(alive["iteration"].unique().to_list())
    births = sorted(alive["born"].unique().to_list())
    below = np.zeros(len(rounds))
    for index, birth in enumerate(births):
        counts = np.array(
            [alive.filter((alive["iteration"] == r) & (alive["born"] == birth)).height
             for r in rounds],
            dtype=float,
        )  # fmt: skip
        name = "random" if birth == 0 else f"after {birth}"
        axes.bar(rounds, counts, 0.7, bottom=below, color=COLORS[index % len(COLORS)], label=name)
        below += counts
    axes.set_xticks(rounds)
    return to_png(
        axes, len(births), xlabel="round (colours: after which round written)", ylabel="survivors"
    )


def round_plot(values: Mapping[str, Sequence[float]], quantity: str) -> bytes:
    """A line a quantity, a point a round."""
    axes = new_axes(width=5.6, height=3.0)
    for index, (name, numbers) in enumerate(values.items()):
        rounds = np.arange(1, len(numbers) + 1)
        axes.plot(rounds, numbers, "o-", color=COLORS[index % len(COLORS)], label=shortened(name))
    axes.xaxis.get_major_locator().set_params(integer=True)
    highest = max((float(np.max(numbers, initial=0.0)) for numbers in values.values()), default=0.0)
    return to_png(
        axes,
        len(values) if len(values) > 1 else 0,
        xlabel="round",
        ylabel=quantity,
        ylim=(0, 1.1 * highest or 1.0),
    )


def _noise_band(axes: object, noise_std: float | None) -> None:
    if noise_std is not None:
        axes.axhspan(  # type: ignore[attr-defined]
            -2 * noise_std, 2 * noise_std, color="#BBBBBB", alpha=0.35, linewidth=0
        )
