"""Times what secret protection computes, and compares votes: `benchmarks/secret_protection.py`.

Prints seconds of the processor for the linear program and the exact calibration (10^5 records x 400
secrets; with `--large` also the program of 10^6 x 10^3 alone), the noise of one dominating pair
beside that of a pair for each secret, and how far votes of released clusters are from votes of the
records themselves. Records are Yelp reviews (DPSYNTH_REAL_DATA, or ../shared/data), candidates
other public text.
`--plot FOLDER` writes the pictures.
"""

import argparse
import os
import time
from pathlib import Path

import numpy as np
from secret_noise import simulated_incidence

from dpsynth_assets.privacy.secret_noise import (
    SecretSampling,
    sampling_probabilities,
    secret_count_distributions,
    secret_noise_std,
    secret_weights,
)
from dpsynth_assets.privacy.secret_protection import gaussian_budget

PRIOR = 1e-4
RATIOS = (2, 10, 50)
RECORDS, CANDIDATES, SURVIVORS = 3_000, 400, 80
CLUSTERS = (20, 80, 200)
CAP = 5


def timed(function):
    start = time.process_time()
    return function(), time.process_time() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--large", action="store_true", help="also 10^6 records x 10^3 secrets")
    parser.add_argument("--plot", type=Path, default=None)
    arguments = parser.parse_args()
    calibration(100_000, 400, 0.01)
    if arguments.large:
        for share in (0.001, 0.005):
            program_alone(1_000_000, 1_000, share)
    votes(arguments.plot)


def calibration(records, secrets, share):
    held = simulated_incidence(records, secrets, share, seed=0)
    pairs, holds = sum(map(len, held)), np.unique(np.concatenate(held))
    print(f"\n{records} records x {secrets} secrets, {pairs} pairs; processor seconds")
    print(f"{'r/p':>5} {'program':>9} {'one pair':>9} {'own pairs':>9} "
          f"{'σ one pair':>11} {'σ own':>8} {'σ GDP':>8} "
          f"{'records used':>13} {'with secrets':>13}")  # fmt: skip
    for ratio in RATIOS:
        mu = gaussian_budget(PRIOR, ratio * PRIOR)
        weights, solving = timed(lambda: secret_weights(held, [mu] * secrets, records))  # noqa: B023
        chances = sampling_probabilities(weights)
        bounds = [(PRIOR, ratio * PRIOR)]

        def shared():
            sampling = SecretSampling.from_public_incidence(chances, held)  # noqa: B023
            return least_noise([sampling.count_probabilities], bounds)  # noqa: B023

        def own():
            distributions = secret_count_distributions(chances, held)  # noqa: B023
            return least_noise(distributions, bounds)  # noqa: B023

        one, one_seconds = timed(shared)
        each, each_seconds = timed(own)
        print(f"{ratio:>5} {solving:>9.2f} {one_seconds:>9.2f} {each_seconds:>9.2f} "
              f"{one:>11.3f} {each:>8.3f} {np.sqrt(2) / mu:>8.3f} "
              f"{chances.sum():>13.0f} {chances[holds].sum():>13.0f}")  # fmt: skip


def least_noise(distributions, bounds):
    noise_std = 1e-2
    for law in distributions:
        noise_std = secret_noise_std(
            count_probabilities=law, bounds=bounds, steps=1, noise_floor=noise_std
        )
    return noise_std


def program_alone(records, secrets, share, ratio=10):
    held = simulated_incidence(records, secrets, share, seed=0)
    mu = gaussian_budget(PRIOR, ratio * PRIOR)
    weights, solving = timed(lambda: secret_weights(held, [mu] * secrets, records))
    fullest = max(weights[rows].sum() for rows in held)
    print(
        f"\n{records} records x {secrets} secrets, {sum(map(len, held))} pairs, r/p = {ratio}: "
        f"program alone {solving:.1f} processor seconds; {weights.sum():.0f} records' worth, "
        f"fullest secret {fullest:.4f} of {mu:.4f}",
        flush=True,
    )


def votes(plots):
    found = embedded()
    if found is None:
        print("\nvotes: skipped, no real corpora (DPSYNTH_REAL_DATA)")
        return
    from dpsynth_assets.methods.evolution.private_evolution import quota_votes
    from dpsynth_assets.methods.evolution.votes import nearest_candidates

    private, public, candidates = found
    everyone, pool = np.zeros(len(private), dtype=np.int64), np.zeros(len(candidates), dtype=int)
    choices, seconds = timed(lambda: nearest_candidates(private, everyone, candidates, pool))
    exact = np.bincount(choices, minlength=len(candidates)).astype(float)
    print(f"\nvotes of {len(private)} reviews on {len(candidates)} candidates, {SURVIVORS} of them "
          f"survive; exact votes take {seconds:.2f} s")  # fmt: skip
    print("'kept' is the share of the exact survivors' votes that the other survivors have")
    noise = secret_noise_std(
        count_probabilities=np.eye(CAP + 1)[CAP], bounds=[(PRIOR, 10 * PRIOR)], steps=1
    )
    print(f"σ = {noise:.2f} records: r/p = 10 for secrets in at most {CAP} records, one release")
    print(f"{'K':>5} {'σ':>6} {'voting':>8} {'seconds':>8} {'with votes':>11} {'overlap':>8} "
          f"{'kept':>6} {'rank corr.':>10}")  # fmt: skip
    for clusters in CLUSTERS:
        for noise_std in (0.0, noise):
            centres, counts = released(private, public, clusters, noise_std)
            weights = np.maximum(counts, 0.0)
            for name, vote in (
                ("nearest", lambda: nearest_votes(centres, weights, candidates)),  # noqa: B023
                ("quota", lambda: quota_votes(centres, weights, candidates, SURVIVORS)),  # noqa: B023
            ):
                given, seconds = timed(vote)
                print(f"{clusters:>5} {noise_std:>6.2f} {name:>8} {seconds:>8.3f} "
                      f"{(given > 0).sum():>11} {compared(exact, given)}")  # fmt: skip
                if plots is not None:
                    picture(plots, exact, given, f"votes_{clusters}_{name}_{noise_std:.2g}.png")


def nearest_votes(centres, weights, candidates):
    """Each representative's whole weight to its nearest candidate, as the paper prints it."""
    nearest = np.argmin(((candidates[:, None] - centres) ** 2).sum(2), axis=0)
    return np.bincount(nearest, weights=weights, minlength=len(candidates))


def released(private, public, clusters, noise_std):
    from dpsynth_assets.clustering import fit_centers, nearest_center
    from dpsynth_assets.privacy.secret_clustering import ClusterStatistics, SecretClustering

    centres = fit_centers(public, clusters=clusters, seed=0)
    members = np.bincount(nearest_center(public, centres), minlength=clusters)
    public_counts = np.maximum(0.1 * members, 1.0)
    if noise_std == 0:
        clusters = ClusterStatistics(
            public_centres=centres, public_counts=public_counts, l2_bound=1.0
        )
        value = clusters.merge(clusters.of(private))
        return value.centres.astype(np.float32), value.counts
    mechanism = SecretClustering(
        public_centres=centres,
        public_counts=public_counts,
        l2_bound=1.0,
        sampling=SecretSampling.capped(probability=1.0, max_occurrences=CAP),
        noise_std=noise_std,
    )
    value = mechanism.release(private).value
    return value.centres.astype(np.float32), value.counts


def compared(exact, given):
    from scipy.stats import spearmanr

    best = np.argsort(-exact, kind="stable")[:SURVIVORS]
    chosen = np.argsort(-given, kind="stable")[:SURVIVORS]
    overlap = len(np.intersect1d(best, chosen)) / SURVIVORS
    kept = exact[chosen].sum() / exact[best].sum()
    return f"{overlap:>8.2f} {kept:>6.2f} {spearmanr(exact, given).statistic:>10.2f}"


def embedded():
    """(private, public, candidates) unit vectors of real text; None without the corpora."""
    import polars as pl

    from dpsynth_assets.models.text_embedder import TextEmbedder

    here = Path(__file__).resolve().parents[1].parent / "shared" / "data"
    data = Path(os.environ.get("DPSYNTH_REAL_DATA", here))
    if not (data / "yelp_reviews.parquet").exists():
        return None
    embedder = TextEmbedder(max_tokens=64)
    reviews = pl.read_parquet(data / "yelp_reviews.parquet")["text"].to_list()[
        : RECORDS + CANDIDATES
    ]
    prose = pl.read_parquet(data / "abc_news.parquet")["text"].to_list()[:1_500]
    prose += pl.read_parquet(data / "brown.parquet")["text"].to_list()[:1_500]
    short = [text[:300] for text in reviews]
    vectors = embedder.embed(short)
    # Half of the candidates are like the records, half are not: as after an iteration or two.
    public = embedder.embed([text[:300] for text in prose])
    half = CANDIDATES // 2
    candidates = np.concatenate([vectors[len(vectors) - half :], public[:half]])
    return vectors[: len(vectors) - half], public[half:], candidates


def picture(folder, exact, given, name):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(vote_plot(exact, given))


def vote_plot(exact, representative, shown=60):
    """Votes of records above those of representatives, for the candidates with most of either.

    Args:
        exact: (C,) votes of records without noise.
        representative: (C,) votes of representatives.
        shown: Candidates shown, those with most exact votes first.
    """
    from dpsynth_assets.report.plots import COLORS, new_axes, to_png

    axes = new_axes(width=6.4, height=3.2)
    order = np.argsort(-exact, kind="stable")[:shown]
    places = np.arange(len(order))
    for sign, votes, name, color in (
        (1, exact, "votes of records", COLORS[0]),
        (-1, representative, "votes of representatives", COLORS[1]),
    ):
        axes.bar(places, sign * votes[order] / votes.sum(), width=0.9, color=color, label=name)
    axes.axhline(0, color="#444444", linewidth=0.8)
    axes.set(xlabel="candidates, most votes of records first", ylabel="share of all votes")
    axes.figure.legend(loc="outside upper left", ncols=2, fontsize=8, frameon=False)
    return to_png(axes)


if __name__ == "__main__":
    main()
