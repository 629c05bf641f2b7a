"""EPSVec: steers a model along the direction from its own texts to the private records.

Banayeeanzade et al. 2026. Read in this order: `config`, `plan` (how much noise), `shots` (fixed
shots by a noisy histogram), `states` (the scaffold around every text, and hidden states),
`negatives` and `vectors` (dataset vectors by one joint noisy mean), `writing`, `method` (its
stages; on weights that were fine-tuned on the same records too).

Shape letters: N records, Y labels, L layers, d width of the residual stream, M texts of a label.
"""

from dpsynth_assets.methods.epsvec.method import EpsVec, EpsVecOnGenerator

__all__ = ["EpsVec", "EpsVecOnGenerator"]
