"""Public texts on which the reach of a model's activations is measured."""

from collections.abc import Callable, Sequence

TEXTS = (
    "We came on a Friday night and waited twenty minutes for a table, which the host had warned us "
    "about. The noodles were worth it: hot, salty, with just enough ginger. Our waiter forgot the "
    "second round of drinks but took them off the bill without being asked. Four stars, and we "
    "will be back for the dumplings. If you can, sit by the window; the room gets loud after 8.",
    "The harbour was founded in 1847 and grew quickly once the railway reached the coast. By the "
    "end of the century it handled a third of the region's timber, most of it bound for shipyards "
    "in the south. Two fires, in 1902 and 1911, destroyed the old warehouses. Today the quarter is "
    "known for its theatre, a small maritime museum and the university's school of engineering.",
    "Dear support team, my order 58213 arrived on Tuesday with a cracked screen. I have already "
    "tried the steps on your website, and the device does not turn on. Could you please send a "
    "replacement to the same address, or refund the $349.99? I attach two photos. Thank you in "
    "advance, and kind regards, Maria.",
    "Shares of the company fell 6 percent in early trading after it cut its forecast for the year. "
    "The chief executive said that demand in Europe had been weaker than expected, while costs for "
    "energy and transport kept rising. Analysts at two banks lowered their ratings.\n\n"
    '{"title": "The Long Road", "year": 1994, "genres": ["drama", "war"], "rating": 7.8}\n\n'
    "def mean(values):\n    return sum(values) / len(values)\n",
    '"You never told me," she said, and put the letter back on the table. He looked at the floor. '
    "Outside the rain had stopped; somebody was laughing in the street below. \"I didn't know how "
    'to begin," he answered at last. "Every time I tried, it was already too late for the truth." '
    "She laughed, not kindly, and went to find her coat.",
)
_TOKENS = 160


def calibration_ids(encode: Callable[[str], Sequence[int]]) -> list[list[int]]:
    """Token ids of the texts; `encode` maps a text to ids."""
    return [list(encode(text))[:_TOKENS] for text in TEXTS]
