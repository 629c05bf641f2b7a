"""Times the accountants and the calibrations: `python benchmarks/accounting.py`.

Prints seconds, of wall and of processor, and the result: optimal adaptive composition of token
draws beside zCDP, plans that mix kinds of releases (one loss distribution each, convolved), DP-SGD
by Rényi divergences and by loss distributions, and the noise and tokens that a target allows.
`python benchmarks/accounting.py counts` times whole counts with integer noise alone; `table10`
prints the token counts of Table 10 of Amin et al. 2025 and how many the same ε buys.
"""

import itertools
import sys
import time

from dpsynth_assets.methods.private_prediction.method import tokens_within
from dpsynth_assets.privacy.accounting import epsilon_of
from dpsynth_assets.privacy.bounded_range import adaptive_profiles, horizon
from dpsynth_assets.privacy.calibration import dp_sgd_noise_multiplier
from dpsynth_assets.privacy.events import (
    BoundedRangeEvent,
    DiscreteGaussianEvent,
    DiscreteLaplaceEvent,
    PoissonGaussianEvent,
    PureEvent,
)
from dpsynth_assets.privacy.renyi import zcdp_rho

DELTA = 1e-6
ETA = {64: 2 * 9 / (64 * 1.5), 256: 2 * 9 / (256 * 1.5)}


RECORDS = {"AGNews": 108_000, "Yelp": 504_000, "NYT Topics": 230_400}
"""Training records n of each corpus (Table 11a of Amin et al. 2025); the paper's δ is n^-1.1."""
TABLE_10 = {
    (10.0, 64): (373, 337, 355),
    (9.9, 64): (367, 331, 349),
    (3.0, 256): (733, 642, 686),
    (2.9, 256): (689, 604, 645),
}
"""(ε, batch size) -> private tokens of a batch as printed (Appendix E.2), by corpus.

The paper charges one record as one logit vector although its prompts hold two records (errata
B-000.1); its numbers are reproduced under its own accounting: add/remove, fixed batch size.
"""


def timed(label, function):
    wall, processor = time.perf_counter(), time.process_time()
    result = function()
    wall, processor = time.perf_counter() - wall, time.process_time() - processor
    print(f"{label:<62} {result:>10.4f} {wall:>8.2f} s {processor:>8.2f} s")


def main():
    if sys.argv[1:] == ["table10"]:
        table10()
        return
    print(f"{'c = 9, τ = 1.5, δ = 1e-6':<62} {'result':>10} {'wall':>10} {'processor':>10}")
    timed("libraries loaded: one mixed plan", lambda: epsilon_of(mixed(3), DELTA, "tight"))
    counts()
    if sys.argv[1:] == ["counts"]:
        return
    tokens()
    training()
    calibration()


def draws_of(eta, count):
    return BoundedRangeEvent(eta=eta, count=count)


def largest_count(eta, target_epsilon, delta):
    """The most token draws within ε, composed one by one: the j-th profile answers for j tokens."""
    rho = 1.6 * zcdp_rho(target_epsilon, delta)  # Optimal composition allows fewer than that.
    profiles = adaptive_profiles(eta, horizon(rho, delta * 1e-4) + eta)
    fits = (profile.epsilon(delta) <= target_epsilon for profile in profiles)
    return sum(1 for _ in itertools.takewhile(bool, fits)) - 1


def table10():
    """About a quarter of a minute: the tight counts compose every token adaptively."""
    print("corpus, ε, batch size, printed, zCDP, tight")
    for (epsilon, size), counts in TABLE_10.items():
        for (corpus, records), printed in zip(RECORDS.items(), counts, strict=True):
            target = epsilon, float(records) ** -1.1
            eta = ETA[size]
            bought = [
                tokens_within(
                    lambda count, eta=eta: BoundedRangeEvent(eta=eta, count=count), *target
                ),
                largest_count(eta, *target),
            ]
            print(corpus, epsilon, size, printed, *bought, sep=", ")


def mixed(count):
    return [DiscreteLaplaceEvent(scale=10.0), BoundedRangeEvent(eta=ETA[64], count=count)]


def counts():
    histograms = [DiscreteGaussianEvent(noise_std=std) for std in (1.5, 3.0, 5.0, 10.0, 20.0)]
    votes = [DiscreteGaussianEvent(noise_std=15.34)] * 10
    drawn = [BoundedRangeEvent(eta=ETA[256], count=2000)]
    for label, events in (
        ("five histograms, σ = 1.5 to 20", histograms),
        ("ten rounds of votes, σ = 15.34", votes),
        ("2,000 tokens, batches of 256", drawn),
        ("2,000 tokens and five histograms", [*drawn, *histograms]),
    ):
        timed(f"ε of {label}, tight", lambda e=events: epsilon_of(e, DELTA, "tight"))


def tokens():
    for size, eta in ETA.items():
        for count in (100, 500, 2000):
            events = [BoundedRangeEvent(eta=eta, count=count)]
            for accountant in ("zcdp", "tight"):
                label = f"ε of {count} tokens, batches of {size}, {accountant}"
                timed(label, lambda e=events, a=accountant: epsilon_of(e, DELTA, a))
    label = "ε of 400 tokens and a Laplace(10) histogram, tight"
    timed(label, lambda: epsilon_of(mixed(400), DELTA, "tight"))
    timed("the same again (cached)", lambda: epsilon_of(mixed(400), DELTA, "tight"))
    tests = PureEvent(epsilon=2 / (256 * 0.2), count=2000)
    events = [BoundedRangeEvent(eta=ETA[256], count=500), tests]
    label = "ε of 500 tokens and 2,000 public-token tests, tight"
    timed(label, lambda: epsilon_of(events, DELTA, "tight"))


def training():
    for q, sigma, steps in ((0.054, 3.0, 2000), (0.0034, 0.63, 2058)):
        event = PoissonGaussianEvent(sampling_probability=q, noise_multiplier=sigma, steps=steps)
        for accountant in ("zcdp", "tight"):
            label = f"ε of DP-SGD, q = {q}, σ = {sigma}, T = {steps}, {accountant}"
            timed(label, lambda e=event, a=accountant: epsilon_of([e], DELTA, a))


def calibration():
    histogram = [DiscreteGaussianEvent(noise_std=10.0)]
    for q, steps, target in ((0.054, 2000, 4.0), (0.054, 2000, 1.0), (0.0034, 2058, 4.0)):
        for accountant in ("zcdp", "tight"):
            label = f"σ of DP-SGD and a histogram, q = {q}, ε = {target:g}, {accountant}"
            timed(
                label,
                lambda q=q, steps=steps, target=target, accountant=accountant: (
                    dp_sgd_noise_multiplier(
                        PoissonGaussianEvent(
                            sampling_probability=q, noise_multiplier=1.0, steps=steps
                        ),
                        target_epsilon=target,
                        delta=DELTA,
                        accountant=accountant,
                        other_events=histogram,
                    )
                ),
            )


if __name__ == "__main__":
    main()
