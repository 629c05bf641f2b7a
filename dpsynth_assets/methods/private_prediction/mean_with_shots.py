"""Private prediction behind released rows: prompts show them before the private records.

A public model asked with a label alone writes far from the records. Rows that another method of the
cohort has released are nearer, and stand in the private prompts and in the public one alike: the
tokens that the public prompt proposes, and the documents it finishes, are then better ones.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dpsynth_assets.methods.inputs import PublicInputs
from dpsynth_assets.methods.private_prediction.config import MeanWithShotsConfig
from dpsynth_assets.methods.private_prediction.mean import MeanPrediction
from dpsynth_assets.methods.stages import Stage

if TYPE_CHECKING:
    import polars as pl


class ShownRows:
    """A language model whose prompts show released rows first; all else is the model's own.

    **Privacy** Rows are the same in all prompts of a label and were released before, so a private
    prompt remains a function of public values and of its own records.
    """

    def __init__(self, inner: Any, shots: Mapping[str, Sequence[str]], max_tokens: int) -> None:
        """Wraps a model.

        Args:
            inner: The model with its prompts.
            shots: Label text -> released rows, in the order in which they are shown.
            max_tokens: Rows are cut to this length where no record stands beside them (tokens).
        """
        self._inner, self._shots, self._max_tokens = inner, shots, max_tokens

    def __getattr__(self, name: str) -> Any:
        """Looks all else up in the wrapped model."""
        return getattr(self._inner, name)

    def prompt_ids(
        self, label_text: str, examples: Sequence[str], max_example_tokens: int
    ) -> list[int]:
        """Tokens of a prompt with released rows before the examples; see `PromptedModel`."""
        shown = self._shots.get(label_text, ())
        cut = max_example_tokens if examples else self._max_tokens
        ids: list[int] = self._inner.prompt_ids(label_text, [*shown, *examples], cut)
        return ids


class MeanWithShots(MeanPrediction[MeanWithShotsConfig]):
    """The mean of clipped logits, behind rows of another DP corpus of the same cohort.

    **Privacy** The corpus was paid for by its own releases; showing its rows is post-processing.
    The draws cost what those of `mean_uniform` cost, and the label states both together.
    """

    name = "mean_with_shots"
    title = "Private prediction behind released rows"
    paper = "Amin et al. 2024, Private prediction for large-scale synthetic text generation"
    arxiv = "2407.12108"
    config_type = MeanWithShotsConfig
    unadvised = "builds on another method's corpus, which is paid for beside it"
    attacks = ()  # The attack plants keys before any corpus exists; `mean_uniform` draws alike.

    @property
    def builds_on(self) -> tuple[str, ...]:
        """The corpus whose rows prompts show."""
        return (self.config.corpus,)

    def stages(self) -> tuple[Stage, ...]:
        """The corpus, which reads the other one."""
        return tuple(replace(stage, reads_corpora=True) for stage in super().stages())

    def shown(self, public: PublicInputs) -> PublicInputs:
        """The public inputs with prompts that show the first rows of each label."""
        rows = self.rows_behind(self.config.corpus, public)
        shots = {}
        for label, text in zip(self.terms.labels, self.terms.label_texts, strict=True):
            of_label = rows.filter(rows["label"] == label)["text"].to_list()
            shots[text] = tuple(of_label[: self.config.shots])
        model = ShownRows(public.language_model, shots, self.config.max_example_tokens)
        return replace(public, language_model=model)

    def shown_corpora(self, public: PublicInputs) -> "Mapping[str, pl.DataFrame]":
        """The first rows of each label."""
        rows = self.rows_behind(self.config.corpus, public).select("text", "label")
        first = rows.group_by("label", maintain_order=True).head(self.config.shots)
        return {self.config.corpus: first}
