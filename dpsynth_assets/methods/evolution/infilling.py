"""Variations by masked infilling: part of a text is blanked, and a model writes it anew.

Two kinds of public models fill in: the language model that writes random texts, which proposes and
weighs (`causal_infilling`), and one that was trained for it, a masked language model such as BERT
or a denoising encoder-decoder such as BART (`masked_models`), where the settings name one.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from dpsynth_assets.methods.evolution.config import EvolutionConfig
from dpsynth_assets.methods.evolution.text_api import RandomApi, ShareCallback

if TYPE_CHECKING:
    from dpsynth_assets.methods.evolution.public_model_api import PublicModelApi


class InfillingError(ValueError):
    """A model that fills in cannot be used: one line, expected, got, remedy."""


class Infiller(Protocol):
    """Blanks part of each text and writes it anew."""

    def fill(
        self,
        texts: Sequence[str],
        labels: Sequence[str],
        shares: np.ndarray,
        *,
        seed: int,
        progress: ShareCallback | None = None,
    ) -> list[str]:
        """Writes one variation of each text.

        Args:
            texts: N released texts.
            labels: Composite label value of each.
            shares: (N,) share of each text that is blanked, in [0, 1].
            seed: Public; what becomes of a text depends on its row, not on the other rows.
            progress: Told the share done.
        """


class InfillingApi:
    """Random texts from one writer, variations by filling in.

    Args:
        random_api: Writes the first generation.
        infiller: Fills in.

    **Source** Xie et al. 2024, whose variation prompt blanks words and asks for them; here the
    model needs no instruction. The share that is blanked is drawn for each text from
    [degree / 2, 3 degree / 2], at most 1.
    """

    def __init__(self, random_api: RandomApi, infiller: Infiller) -> None:
        self._random_api, self._infiller = random_api, infiller

    def random(
        self, labels: Sequence[str], *, seed: int, progress: ShareCallback | None = None
    ) -> list[str]:
        """See `RandomApi.random`."""
        return self._random_api.random(labels, seed=seed, progress=progress)

    def vary(
        self,
        texts: Sequence[str],
        labels: Sequence[str],
        *,
        degree: float,
        seed: int,
        progress: ShareCallback | None = None,
    ) -> list[str]:
        """See `VariationApi.vary`."""
        draws = np.random.default_rng(seed).uniform(degree / 2.0, 1.5 * degree, len(texts))
        shares = np.minimum(draws, 1.0)
        filled = self._infiller.fill(texts, labels, shares, seed=seed, progress=progress)
        return [new or old for new, old in zip(filled, texts, strict=True)]


def open_infilling(public_model: "PublicModelApi", config: EvolutionConfig) -> InfillingApi:
    """Opens the model that fills in: the one named, else the public language model itself.

    Raises:
        InfillingError: The named model cannot be loaded or fills nothing in.
    """
    if config.infilling_model is None:
        from dpsynth_assets.methods.evolution.causal_infilling import CausalInfiller

        return InfillingApi(public_model, CausalInfiller(public_model, config))
    from dpsynth_assets.methods.evolution.masked_models import open_masked_model

    model = open_masked_model(config.infilling_model, config, public_model.device)
    return InfillingApi(public_model, model)


def infilling_refusal(config: EvolutionConfig) -> str | None:
    """Says in one line why the named model cannot be there, before anything is charged."""
    source = config.infilling_model
    if source is None or Path(source).is_dir():
        return None
    if Path(source).is_absolute() or source.startswith(".") or source.count("/") > 1:
        return (
            f"Expected a model folder at {source} for infilling_model, got none. Correct the path, "
            "or give a hub id."
        )
    return None
