"""Clipped sums of per-example gradients of a transformer, without those of its large matrices.

One backward pass keeps every layer's inputs and output gradients (`recording`, `uses`), once it
is known that their first axis counts examples (`support` for T5), from which norms
(`norms`) and the clipped sum (`bookkeeper`) follow by matrix products. Matrices that are small
beside their inputs have each example's gradient computed once, for both. CPU threads take parts of
a batch side by side, each with modules of its own over the same weights.
Layers of other kinds (`support`) have each example's gradient computed by Opacus (`opacus_layers`).
Sums in float64 are exact (`SumLattice`), so that workers may share a batch (`poisson_sampling`).
What records that share a pass may move one another is bounded and charged (`arithmetic`).
`PerExampleGradients` is the way in; it never hands out a sum of its own: `DpSgdMechanism` asks for
it and adds noise.

**Source** Book-keeping: Bu et al. 2023 (arXiv:2210.00038), sections 3 and 4. Ghost norms: Li et
al. 2022 (arXiv:2110.05679), section 4, here with tied embeddings.
"""

from dpsynth_assets.privacy.per_example.arithmetic import (
    GRADIENT_SLACK,
    Products,
    most_in_company,
    refuse_undeclared_slack,
)
from dpsynth_assets.privacy.per_example.bookkeeper import LossOfPart, PerExampleGradients
from dpsynth_assets.privacy.per_example.support import opacus_layers, trainable_parameters
