"""Prints tokens a processor second of each side, medians over rounds, and the ratios."""

import statistics

from common import BATCH, DOCUMENTS, TOKENS, WORK

PEERS = {
    "invink": "InvisibleInk package",
    "amin": "Amin et al. 2024, public reimplementation",
}
SIDES = {
    ".ours.one": "ours, a document at a time",
    ".ours.all": "ours, all in one pass",
    ".ours.exact": "ours, all in one pass, decoder: exact",
    ".ours.vllm": "ours, all in one pass, decoder: vllm",
}


def rates(side: str) -> list[tuple[float, float]]:
    """Tokens a second of each round: in all, and while decoding."""
    file = WORK / f"{side}.times"
    rounds = [map(float, line.split()) for line in file.read_text().splitlines()]
    return [(tokens / seconds, decoded / decoding) for tokens, seconds, decoded, decoding in rounds]


def main() -> None:
    print(f"{DOCUMENTS} documents, {BATCH} contexts each, {TOKENS} tokens, float32, one thread")
    print("tokens a processor second, median of rounds: in all; after the first token of each")
    for peer, title in PEERS.items():
        if not (WORK / f"{peer}.ours.all.times").exists():
            continue
        theirs = rates(peer)
        show(title, theirs, theirs)
        for side, name in SIDES.items():
            if (WORK / f"{peer}{side}.times").exists():
                show("  " + name, rates(peer + side), theirs)


def show(name: str, ours: list[tuple[float, float]], theirs: list[tuple[float, float]]) -> None:
    cells = []
    for part in range(2):
        rate = statistics.median(round_[part] for round_ in ours)
        ratio = statistics.median(o[part] / t[part] for o, t in zip(ours, theirs, strict=True))
        cells.append(f"{rate:8.1f} {ratio:5.1f}x")
    print(f"{name:44s}" + "   ".join(cells))


if __name__ == "__main__":
    main()
