"""Times the tight accountant: `python benchmarks/accounting.py`.

Prints seconds and ε of the optimal adaptive composition of token draws beside zCDP, and of a
plan that mixes tokens with a histogram (one loss distribution each, convolved).
"""

import time

from dpsynth_assets.privacy.accounting import epsilon_of
from dpsynth_assets.privacy.calibration import largest_token_count
from dpsynth_assets.privacy.events import BoundedRangeEvent, DiscreteLaplaceEvent

DELTA = 1e-6
ETA = {64: 2 * 9 / (64 * 1.5), 256: 2 * 9 / (256 * 1.5)}


def timed(label, function):
    start = time.perf_counter()
    result = function()
    print(f"{label:<58} {result:>10.4f} {time.perf_counter() - start:>8.2f} s")


def main():
    print(f"{'c = 9, τ = 1.5, δ = 1e-6':<58} {'result':>10} {'time':>10}")
    for size, eta in ETA.items():
        for count in (100, 500, 2000):
            tokens = [BoundedRangeEvent(eta=eta, count=count)]
            for accountant in ("zcdp", "tight"):
                label = f"ε of {count} tokens, batches of {size}, {accountant}"
                timed(label, lambda t=tokens, a=accountant: epsilon_of(t, DELTA, a))
    mixed = [DiscreteLaplaceEvent(scale=10.0), BoundedRangeEvent(eta=ETA[64], count=400)]
    timed(
        "ε of 400 tokens and a Laplace(10) histogram, tight",
        lambda: epsilon_of(mixed, DELTA, "tight"),
    )
    timed("the same again (cached)", lambda: epsilon_of(mixed, DELTA, "tight"))
    timed(
        "tokens within ε = 10 beside that histogram, tight",
        lambda: largest_token_count(
            eta=ETA[64],
            target_epsilon=10.0,
            delta=DELTA,
            accountant="tight",
            other_events=mixed[:1],
        ),
    )


if __name__ == "__main__":
    main()
