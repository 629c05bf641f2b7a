"""The common part of Aug-PE and SecPE: a stage that ends with a population, then free rows."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import polars as pl

from dpsynth_assets.datasets.public_spec import EngineSpec
from dpsynth_assets.files.whole import Room, bytes_of_texts
from dpsynth_assets.methods.base import Method, form_of
from dpsynth_assets.methods.capabilities import DeclaredFacts
from dpsynth_assets.methods.evolution.apis import TextApi, open_api, read_prompts
from dpsynth_assets.methods.evolution.config import (
    LAST_DEGREE,
    ROWS_PER_FORWARD,
    EvolutionConfig,
)
from dpsynth_assets.methods.evolution.evolution import Evolution
from dpsynth_assets.methods.evolution.population import (
    generation_facts,
    last_survivors,
    read_generations,
)
from dpsynth_assets.methods.inputs import ProgressCallback, PublicInputs
from dpsynth_assets.methods.rejection_sampling import (
    EVERY_ROW,
    RowFilter,
    accepted_rows,
    accepted_work,
    round_seed,
    settings_of,
    write_accepted,
)
from dpsynth_assets.methods.stages import (
    MethodPlan,
    Stage,
    SyntheticCorpus,
    Writing,
)
from dpsynth_assets.methods.work import PublicSizes, Work
from dpsynth_assets.models.decoding import attention_limit
from dpsynth_assets.models.row_rules import FREE, TextForm

_WRITING = 2**31
"""Keeps the stream of written rows apart from those of the rounds."""


def write_rows(
    survivors: pl.DataFrame,
    sizes: np.ndarray,
    labels: Sequence[str],
    api: TextApi,
    seed: int,
    progress: ProgressCallback,
    *,
    kept: RowFilter = EVERY_ROW,
    form: TextForm = FREE,
) -> SyntheticCorpus:
    """Writes each label's survivors, most votes first, then variations of them in turn.

    In the place of a row that is not kept stands a further variation of the same survivor.

    Args:
        survivors: The last survivors (`population.last_survivors`).
        sizes: (L,) rows of each label.
        labels: L composite label values.
        api: Writes variations.
        seed: Public seed.
        progress: Told the share done.
        kept: Decides which rows are kept.
        form: What a text has to be.

    Returns:
        Columns `text`, `label`, `parent` (number of the survivor) and `variation` (0 for the
        survivor itself).

    **Source** Xie et al. 2024, Algorithm 1, whose last step varies the survivors once; that every
    survivor is varied equally often is what its expansion by L - 1 does in every round.
    """
    parents, copies = _parents(survivors["label"].to_numpy(), sizes)
    names = [labels[number] for number in survivors["label"][parents]]
    survivor_of = survivors["text"][parents].to_list()
    tries = np.zeros(len(parents), dtype=np.int64)

    def write(places: Sequence[int], round_number: int, progress: ProgressCallback) -> list[str]:
        tries[places] = round_number
        new = [place for place in places if round_number or copies[place]]
        texts = {place: form.read(survivor_of[place]) for place in places}
        if new:
            varied = api.vary(
                [survivor_of[place] for place in new],
                [names[place] for place in new],
                degree=LAST_DEGREE,
                seed=round_seed(round_seed(seed, _WRITING), round_number),
                progress=lambda share: progress(share, "writing variations of the survivors"),
            )
            texts |= dict(zip(new, map(form.read, varied), strict=True))
        return [texts[place] for place in places]

    texts, judged = write_accepted(write, kept, len(parents), progress)
    variation = np.where(tries > 0, np.maximum(copies, 1), copies)
    frame = accepted_rows(texts, label=names, parent=parents, variation=variation)
    survived = int((frame["variation"] == 0).sum())
    facts = {
        "rows": frame.height,
        "survivors": survived,
        "variations": frame.height - survived,
        **judged,
    }
    return SyntheticCorpus(rows=frame, facts=facts)


def _parents(survivor_labels: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Survivor behind each row, and how many rows of it there were before."""
    parents, copies = [], []
    for label, size in enumerate(np.asarray(sizes).tolist()):
        places = np.flatnonzero(survivor_labels == label)
        turns = np.arange(size)
        parents.append(places[turns % max(1, len(places))] if size else places[:0])
        copies.append(turns // max(1, len(places)))
    return np.concatenate(parents), np.concatenate(copies).astype(np.int64)


STAGE = "population"

EvolutionT = TypeVar("EvolutionT", bound=EvolutionConfig)


_SHOWN = 2_000
"""Public documents that are embedded beside the survivors, to show the rounds."""


def evolution_settings(facts: DeclaredFacts) -> dict[str, Any]:
    """Settings that advice weighs: as many survivors as rows, of which votes chose every one."""
    return {
        "population": facts.rows,
        "variations": 4,
        "iterations": 3,
        "max_new_tokens": facts.text_tokens,
        "rows": facts.rows,
    }


class EvolutionMethod(Method[EvolutionT]):
    """A population evolves under released votes; rows are its survivors and their variations."""

    follows_schema = True
    free_settings = frozenset({"rows", "rows_per_forward"})

    def shared_out(self, places: int) -> np.ndarray:
        """Places of each label, as equal as they can be: (L,) int64.

        True shares of labels are private and never read; `refusal` asks for a place of each in a
        population: a label without candidates could receive no vote in any later round.
        """
        labels = len(self.terms.labels)
        return places // labels + (np.arange(labels) < places % labels)

    @property
    def public_inputs(self) -> frozenset[str]:
        """The records' embedder, and the public language model where it writes."""
        model = {"public_language_model"} if self.config.api == "public_model" else set()
        return frozenset({"text_embedder", *model})

    @property
    def _engine(self) -> EngineSpec | None:
        return self.terms.engine if self.config.api == "engine" else None

    def stage(self, name: str, **own: Any) -> Stage:
        """A stage: all of them read the same, and have the room of the evolution.

        What the schema leaves unwritten is told before the first charge.
        """
        if name == STAGE:
            own |= {"work": self.rounds_work, "releases_rounds": True}
        if name == STAGE or form_of(self).schema is not None:
            own.setdefault("check", self.check_public)
        return Stage(
            name=name, reads=self.public_inputs, engine=self._engine, takes=self.room, **own
        )

    def writing(self) -> Writing:
        """Rows are the last survivors and variations of them."""
        config = self.config
        return Writing(
            reads=self.public_inputs | settings_of(config.rejection).public_inputs(),
            engine=self._engine,
            rows=config.rows,
            row_tokens=config.max_new_tokens,
            work=self.rows_work,
            write=self.write,
        )

    def rows_work(self, _plan: MethodPlan, sizes: PublicSizes) -> Work:
        """Counts the rows beside the survivors."""
        config = self.config
        survivors = min(config.rows, config.population)
        shown = Work(embedded=min(sizes.documents, _SHOWN) * sizes.text_tokens)

        def write(texts: float) -> Work:
            return self._variations(texts, LAST_DEGREE, sizes)

        return accepted_work(config.rejection, config.rows - survivors, sizes, write) + shown

    def rounds_work(self, _plan: MethodPlan, sizes: PublicSizes) -> Work:
        """First texts and T - 1 rounds of variations; a round embeds candidates, or K of each."""
        config = self.config
        candidates, longest = config.population * config.variations, config.max_new_tokens
        counted = sizes.writing(
            candidates,
            sizes.frame(0),
            longest,
            rows=ROWS_PER_FORWARD,
            different=len(self.terms.labels),
        )
        embedded = config.iterations * candidates * max(1, config.lookahead)
        counted += Work(embedded=embedded * sizes.text(longest))
        new = config.population * (config.variations - 1)
        for number in range(config.iterations):
            if number:
                counted += self._variations(new, config.degree(number), sizes)
            ahead = config.lookahead * candidates
            counted += self._variations(ahead, config.degree(number + 1), sizes)
        return counted

    def _variations(self, texts: float, degree: float, sizes: PublicSizes) -> Work:
        """Texts whose beginning stands in the prompt; an engine is shown the whole of each."""
        longest, frame = self.config.max_new_tokens, sizes.frame(0)
        own = sizes.text(longest)
        if self.config.api == "engine":
            return sizes.writing(texts, frame + own, longest, rows=ROWS_PER_FORWARD)
        begun = own * (1.0 - degree)
        return sizes.writing(texts, frame, longest, rows=ROWS_PER_FORWARD, begun=begun)

    def check_public(self, public: PublicInputs) -> None:
        """Loads the model that writes."""
        if public.language_model is not None and self.config.api == "public_model":
            self._require_room(public.language_model)
        api = open_api(self.config, self.terms, public, form_of(self))
        if form_of(self).schema is not None and not any(api.random(self.terms.labels * 4, seed=0)):
            raise ValueError(
                "Expected max_new_tokens that a record of the schema fits in, got "
                f"{self.config.max_new_tokens}: no trial text was complete. Raise it."
            )

    def _require_room(self, model: Any) -> None:
        """Refuses prompts that leave no room for a text of full length."""
        longest = max(len(model.prompt_ids(text, [], 1)) for text in self.terms.label_texts)
        tokens, limit = longest + self.config.max_new_tokens, attention_limit(model.config)
        if limit is not None and tokens > limit:
            raise ValueError(
                f"Expected prompt and text within {limit} tokens of {model.name}, got {tokens}. "
                "Shorten the domain, description or label words, or lower max_new_tokens."
            )

    def room(self, _stage: Stage, _public: PublicInputs) -> Room:
        """Counts the candidates of all rounds at full length: they are released and kept."""
        config = self.config
        candidates = config.population * (config.variations + 1) * (config.iterations + 1)
        texts = bytes_of_texts(candidates, config.max_new_tokens)
        return Room(release=texts, kept=texts)

    def write(self, public: PublicInputs, rows: int, progress: ProgressCallback) -> SyntheticCorpus:
        """Writes the last survivors and variations of them.

        **Privacy** Post-processing of released votes: any number of rows is free.
        """
        survivors = last_survivors(read_generations(public.released[STAGE].folder))
        sizes = self.shared_out(rows)
        api = open_api(self.config, self.terms, public, form_of(self))
        return write_rows(
            survivors,
            sizes,
            self.terms.labels,
            api,
            public.seed,
            progress,
            kept=RowFilter.of(self, public),
            form=form_of(self),
        )

    def starting_rows(self, _public: PublicInputs) -> Mapping[str, Sequence[str]]:
        """Released texts of each label that stand in the place of random ones: none."""
        return {}

    def evolution(self, public: PublicInputs) -> Evolution:
        """The rounds, which run under a function that releases votes."""
        return Evolution(
            config=self.config,
            labels=self.terms.labels,
            sizes=self.shared_out(self.config.population),
            api=open_api(self.config, self.terms, public, form_of(self)),
            embedder=public.required("text_embedder"),
            seed=public.seed,
            rows=self.starting_rows(public),
        )

    def facts_of(self, generations: pl.DataFrame) -> dict[str, Any]:
        """What is told of a population that is released."""
        return {**generation_facts(generations), "labels": list(self.terms.labels)}

    def settings(self) -> dict[str, Any]:
        """Writes the settings as the ledger keeps them: prompt files by a digest of their content.

        Raises:
            PromptError: A prompt file is missing or wrong.
        """
        parameters = self.config.stated()
        if self.config.api == "engine":
            prompts = read_prompts(self.config, self.terms)
            parameters |= {
                "random_prompt": prompts[0].digest,
                "variation_prompt": prompts[1].digest,
            }
        return parameters

    def require_sound(self) -> None:
        """Checks public facts that no evolution can do without.

        Raises:
            ValueError: One of them is not as it should be.
        """
        config, terms = self.config, self.terms
        if config.population < len(terms.labels):
            raise ValueError(
                f"Expected population >= {len(terms.labels)}, one candidate per label, got "
                f"{config.population}. Raise it."
            )
        if config.api == "engine" and terms.engine.model is None:
            raise ValueError(
                "Expected engine.model in the dataset file for api: engine, got none. Name a "
                "model, or set api: public_model."
            )
