"""Private evolution: a population of public texts that private records vote on.

`aug_pe` (Xie et al. 2024, after Lin et al. 2024). Read in this order: `config`, `prompts` and
`apis` (what writes), `votes` (whom a record votes for, and what is charged), `population` (who
survives, and what is released), `evolution` (the loop, its checkpoints), `method` (what evolving
methods share, and free rows), `private_evolution` (from random texts, or from another released
corpus).

`secpe` (Wang et al. 2025) runs the same loop under votes of released clusters: `secret_incidence`,
`secret_clusters` (what is charged and released, and its noise), `private_evolution`.
"""

from dpsynth_assets.methods.evolution.private_evolution import AugPe, AugPeFromCorpus, SecPe

__all__ = ["AugPe", "AugPeFromCorpus", "SecPe"]
