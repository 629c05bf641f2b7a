"""Private evolution: a population of public texts that private records vote on.

`aug_pe` (Xie et al. 2024, after Lin et al. 2024). Read in this order: `config`, `prompts` and
`apis` (what writes: `engine_api`, `public_model_api`), `votes` (whom a record votes for),
`selection`, `population`, `evolution` (the loop, its checkpoints), `generations` (what is
released), `writing` (free rows), `method` (what evolving methods share), `aug_pe_votes` (what is
charged), `aug_pe` and `from_corpus` (which starts from another released corpus).

`secpe` (Wang et al. 2025) runs the same loop under votes of released clusters: `secret_config`,
`secret_incidence`, `secret_clusters` (what is charged and released), `secret_plan` (its noise),
`secret_votes`, `secpe`.
"""

from dpsynth_assets.methods.evolution.aug_pe import AugPe
from dpsynth_assets.methods.evolution.from_corpus import AugPeFromCorpus
from dpsynth_assets.methods.evolution.secpe import SecPe

__all__ = ["AugPe", "AugPeFromCorpus", "SecPe"]
