"""Names and descriptions of the attacks on methods, and of their results."""

from enum import StrEnum

OWN_MODEL, COPYING_MODEL = "public model", "copying model"
"""Language models that keys are planted in the prompts of."""

MEDIANS = MEDIAN_GAMMA, MEDIAN_REMOVAL = "median-gamma", "median-removal"


class Attack(StrEnum):
    """An attack on made-up or public records, with a method's own mechanism and settings."""

    RECONSTRUCTION = "reconstruction"
    """Keys are planted among the records and looked for in what the method writes."""
    MEDIAN_AUDIT = "median audit"
    """Every token drawn from medians is priced again without each of its contexts."""

    @property
    def results(self) -> tuple[str, ...]:
        """Names under which its results are recorded."""
        if self is Attack.MEDIAN_AUDIT:
            return MEDIANS
        return tuple(f"{self} ({model})" for model in (OWN_MODEL, COPYING_MODEL))


RECONSTRUCTIONS = Attack.RECONSTRUCTION.results

CLAIMS = {
    "reconstruction": (
        "Planted keys are written no more often than the stated ε allows.",
        "ε, claimed and proven",
    ),
    MEDIAN_GAMMA: (
        "γ bounds how much the contexts of one unit changed any drawn token's log-probability.",
        "excess of the log-likelihood ratio over γ",
    ),
    MEDIAN_REMOVAL: (
        "The sum of γ bounds how much the contexts of one unit changed the whole draw of a batch.",
        "log-likelihood ratio, claimed and attained by removing contexts",
    ),
}
"""Claim and measure of each attack, as a label prints them."""
