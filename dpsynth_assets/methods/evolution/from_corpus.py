"""Aug-PE that starts from another released corpus of the cohort instead of random texts.

Random texts of a public model lie far from the records, and the first votes are spent on leaving
them. Rows that another method has released begin nearer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from dpsynth_assets.methods.candidates import Advice, Candidate, DeclaredFacts, behind
from dpsynth_assets.methods.capabilities import BuildsOn, Evolves
from dpsynth_assets.methods.evolution.aug_pe import VotedEvolution
from dpsynth_assets.methods.evolution.config import AugPeFromCorpusConfig
from dpsynth_assets.methods.evolution.method import STAGE, evolution_settings
from dpsynth_assets.methods.evolution.text_api import ShareCallback, TextApi
from dpsynth_assets.methods.inputs import PublicInputs, rows_behind
from dpsynth_assets.methods.stages import Stage


@dataclass(frozen=True, kw_only=True)
class StartingRows:
    """Gives released rows where random texts are asked for; variations are the writer's own.

    Attributes:
        api: Writes variations, and random texts where a label has too few rows.
        rows: Label -> released rows of the form that is asked for.
    """

    api: TextApi
    rows: Mapping[str, Sequence[str]] = field(repr=False)

    def random(
        self, labels: Sequence[str], *, seed: int, progress: ShareCallback | None = None
    ) -> list[str]:
        """Takes each label's rows in their order, then writes what is lacking."""
        left = {label: iter(texts) for label, texts in self.rows.items()}
        found = [next(left.get(label, iter(())), None) for label in labels]
        lacking = [label for label, text in zip(labels, found, strict=True) if text is None]
        written = iter(self.api.random(lacking, seed=seed, progress=progress) if lacking else [])
        return [next(written) if text is None else text for text in found]

    def vary(
        self,
        texts: Sequence[str],
        labels: Sequence[str],
        *,
        degree: float,
        seed: int,
        progress: ShareCallback | None = None,
    ) -> list[str]:
        """See `TextApi.vary`."""
        return self.api.vary(texts, labels, degree=degree, seed=seed, progress=progress)


def _after_ctcl(facts: DeclaredFacts) -> tuple[Candidate, ...]:
    """After ctcl, whose rows lie near the records: one round less."""
    settings = {"corpus": "ctcl", **evolution_settings(facts), "iterations": 2}
    return (Candidate(line="aug_pe_from_ctcl", settings=settings, **behind("ctcl")),)


class AugPeFromCorpus(VotedEvolution[AugPeFromCorpusConfig]):
    """Aug-PE (Xie et al. 2024) from the rows of another DP corpus of the same cohort.

    **Privacy** The corpus was paid for by its own releases; starting from it is post-processing.
    The votes cost what those of `aug_pe` cost, and the label states both together.
    """

    name: ClassVar[str] = "aug_pe_from_corpus"
    title: ClassVar[str] = "Aug-PE from another corpus"
    config_type = AugPeFromCorpusConfig
    advice = Advice(candidates=_after_ctcl)
    capabilities = (Evolves(STAGE), BuildsOn(corpora=lambda own: (own.config.corpus,)))

    def stages(self) -> tuple[Stage, ...]:
        """Those of Aug-PE; the population reads the other corpus."""
        *before, population = super().stages()
        own = replace(population, reads_corpora=True, check=self.check_with_corpus)
        return (*before, own)

    def check_with_corpus(self, public: PublicInputs) -> None:
        """Asks for the other corpus, beside what Aug-PE asks for."""
        self.check_public(public)
        rows_behind(self.config.corpus, public)

    def writer(self, public: PublicInputs) -> TextApi:
        """Opens the writer, which begins with released rows."""
        rows = rows_behind(self.config.corpus, public)
        by_label = {
            label: list(filter(self.form.read, rows.filter(rows["label"] == label)["text"]))
            for label in self.terms.labels
        }
        return StartingRows(api=super().writer(public), rows=by_label)
