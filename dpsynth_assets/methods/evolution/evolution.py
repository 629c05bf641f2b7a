"""The loop of Aug-PE and SecPE: write candidates, collect votes, keep the best candidates.

A round has two steps, and each is checkpointed whole as it ends: candidates are written
(`written`), votes are released and survivors chosen (`voted`). A run that was killed
goes on after its last step under the same charge: votes that were stored are never drawn again, and
a variation is asked for only after the votes that chose its parent are on disk.

Letters: C candidates, L labels, T rounds, d dimensions.

**Source** Xie et al. 2024, Algorithm 1; Wang et al. 2025 (SecPE), Algorithm 3, of which the votes
are all that differs.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import polars as pl

from dpsynth_assets.files.whole import Checkpoint
from dpsynth_assets.methods.evolution.apis import TextApi
from dpsynth_assets.methods.evolution.config import EvolutionConfig
from dpsynth_assets.methods.evolution.population import (
    chosen,
    no_generations,
    random_population,
    select,
    voted_frame,
    with_variations,
)
from dpsynth_assets.methods.inputs import ProgressCallback
from dpsynth_assets.privacy.errors import UnaccountedReleaseError

if TYPE_CHECKING:
    from dpsynth_assets.models.text_embedder import TextEmbedder

VoteFunction = Callable[[int, pl.DataFrame, np.ndarray], np.ndarray]
"""(rounds done, candidates, float32 (C, d) embeddings) -> (C,) released votes of this round."""

_STATE, _POPULATION, _GENERATIONS = "state.json", "population.parquet", "generations.parquet"


_RANDOM, _VARIATIONS, _LOOKAHEAD = 0, 1, 3
"""Public random streams of one round. What 2 drew is gone; the others stay as they are."""


@dataclass(frozen=True)
class EvolutionState:
    """State of an evolution. Released but for the round that is not voted on yet.

    Attributes:
        rounds: Rounds whose votes were released.
        phase: Last step: the population is the round's candidates, or its survivors.
        population: Candidates, or survivors (`population.random_population`).
        generations: Every voted candidate of every round (`generations.voted_frame`).
    """

    rounds: int
    phase: Literal["written", "voted"]
    population: pl.DataFrame = field(repr=False)
    generations: pl.DataFrame = field(repr=False)

    def save(self, folder: Path, identity: Mapping[str, Any]) -> None:
        """Writes everything into an empty folder."""
        state = {"rounds": self.rounds, "phase": self.phase, "identity": dict(identity)}
        (folder / _STATE).write_text(json.dumps(state), encoding="utf-8")
        self.population.write_parquet(folder / _POPULATION)
        self.generations.write_parquet(folder / _GENERATIONS)

    @classmethod
    def load(cls, folder: Path, identity: Mapping[str, Any]) -> "EvolutionState":
        """Reads a checkpoint.

        Raises:
            UnaccountedReleaseError: If it is another plan's: its rounds were paid for under other
                noise, and would be passed off as this plan's.
        """
        state = json.loads((folder / _STATE).read_text(encoding="utf-8"))
        if state["identity"] != json.loads(json.dumps(dict(identity))):
            raise UnaccountedReleaseError(
                "Expected a checkpoint of this plan, got one whose votes were paid for under "
                "another plan. Start a release with another name."
            )
        return cls(
            int(state["rounds"]),
            state["phase"],
            pl.read_parquet(folder / _POPULATION),
            pl.read_parquet(folder / _GENERATIONS),
        )


@dataclass(frozen=True, kw_only=True)
class Evolution:
    """One evolution.

    Attributes:
        config: Settings.
        labels: L composite label values.
        sizes: (L,) survivors of each label, from public or released numbers.
        api: What writes.
        embedder: Public embedder of candidates; the records' own.
        seed: Seed of public randomness.
        rows: Label -> released texts that the first population begins with.
    """

    config: EvolutionConfig
    labels: tuple[str, ...]
    sizes: np.ndarray
    api: TextApi
    embedder: "TextEmbedder"
    seed: int
    rows: Mapping[str, Sequence[str]] = field(default_factory=dict, repr=False)

    def run(
        self,
        vote: VoteFunction,
        progress: ProgressCallback,
        *,
        identity: Mapping[str, Any] | None = None,
        checkpoint: Checkpoint | None = None,
    ) -> EvolutionState:
        """Runs, or goes on, until all T rounds are voted on.

        Args:
            vote: Called once for every round that is not stored yet.
            progress: Told the share done; about votes only once they are on disk.
            identity: JSON values that tell this plan's checkpoints from another's.
            checkpoint: Where steps are kept; None: nowhere, where all of them are public.

        Raises:
            UnaccountedReleaseError: The checkpoint is another plan's.
        """

        def keep(state: EvolutionState) -> EvolutionState:
            if checkpoint is not None:
                checkpoint.save(checkpoint.filled(lambda files: state.save(files, identity or {})))
            return state

        kept = None if checkpoint is None else checkpoint.saved
        if kept is None:
            state = keep(self._first(progress))
        else:
            state = EvolutionState.load(kept, identity or {})
            progress(
                state.rounds / self.config.iterations, f"continuing after {state.rounds} rounds"
            )
        # [secpe A3:L5]
        while state.phase == "written" or state.rounds < self.config.iterations:
            if state.phase == "written":
                state = keep(self._voted(state, vote, progress))
            else:
                state = keep(self._written(state, progress))
        progress(1.0, f"{state.rounds} rounds of votes released")
        return state

    def _first(self, progress: ProgressCallback) -> EvolutionState:
        """N_syn L texts: released rows, and random texts where a label has too few."""
        numbers = np.repeat(np.arange(len(self.labels)), self.sizes * self.config.variations)
        labels = [self.labels[number] for number in numbers.tolist()]

        def write(lacking: list[str]) -> list[str]:
            told = self._share(progress, 0, f"writing {len(labels)} random texts")
            seed = self._stream(0, _RANDOM)
            return self.api.random(lacking, seed=seed, progress=told)

        texts = begun_with(self.rows, labels, write)
        population = random_population(texts, numbers)  # [secpe A3:L4]
        return EvolutionState(0, "written", population, no_generations())

    def _voted(
        self, state: EvolutionState, vote: VoteFunction, progress: ProgressCallback
    ) -> EvolutionState:
        """Releases one round's votes and chooses who survives."""
        population, config = state.population, self.config
        progress(
            (state.rounds + 0.8) / config.iterations,
            f"round {state.rounds + 1} of {config.iterations}: {population.height} candidates",
        )
        dp_votes = vote(state.rounds, population, self._embedded(state))  # [secpe A3:L6]
        candidates = population["label"].to_numpy()
        survivors = select(dp_votes, candidates, self.sizes)  # [secpe A3:L12]
        rounds = state.rounds + 1
        voted = voted_frame(
            population, dp_votes, survivors, rounds, last=rounds == config.iterations
        )
        return replace(
            state,
            rounds=rounds,
            phase="voted",
            population=chosen(population, survivors),
            generations=state.generations.vstack(voted),
        )

    def _written(self, state: EvolutionState, progress: ProgressCallback) -> EvolutionState:
        """Survivors and their L - 1 variations."""
        survivors, config = state.population, self.config
        parents = np.repeat(np.arange(survivors.height), config.variations - 1)
        message = f"round {state.rounds + 1} of {config.iterations}: writing variations"
        texts = self._variations(
            survivors,
            parents,
            config.degree(state.rounds),
            self._stream(state.rounds, _VARIATIONS),
            self._share(progress, state.rounds, message),
        )
        following = with_variations(survivors, texts, parents, state.rounds)  # [secpe A3:L13]
        return replace(state, phase="written", population=following)

    def _embedded(self, state: EvolutionState) -> np.ndarray:
        """(C, d) embeddings that are voted on: of a candidate, or the mean of K variations.

        **Source** Xie et al. 2024, Algorithm 1, the embedding of K > 0 variations.
        """
        population, ahead = state.population, self.config.lookahead
        if ahead == 0:
            return self.embedder.embed(population["text"].to_list(), public=True)
        everyone = np.arange(population.height)
        total = np.zeros((population.height, self.embedder.dimension), dtype=np.float64)
        for look in range(ahead):
            texts = self._variations(
                population,
                everyone,
                self.config.degree(state.rounds + 1),
                self._stream(state.rounds, _LOOKAHEAD, look),
                None,
            )
            total += self.embedder.embed(texts, public=True)
        return (total / ahead).astype(np.float32)

    def _variations(
        self,
        population: pl.DataFrame,
        parents: np.ndarray,
        degree: float,
        seed: int,
        progress: Callable[[float], None] | None,
    ) -> list[str]:
        begun = population[parents]
        return self.api.vary(
            begun["text"].to_list(),
            [self.labels[label] for label in begun["label"]],
            degree=degree,
            seed=seed,
            progress=progress,
        )

    def _stream(self, *numbers: int) -> int:
        """Seed of one public stream; a resumed run uses the same one."""
        return int(np.random.SeedSequence([self.seed, *numbers]).generate_state(1)[0])

    def _share(
        self, progress: ProgressCallback, rounds: int, message: str
    ) -> Callable[[float], None]:
        return lambda share: progress((rounds + 0.8 * share) / self.config.iterations, message)


def begun_with(
    rows: Mapping[str, Sequence[str]],
    labels: Sequence[str],
    write: Callable[[list[str]], list[str]],
) -> list[str]:
    """Takes each label's rows in their order, then writes what is lacking."""
    left = {label: iter(texts) for label, texts in rows.items()}
    found = [next(left.get(label, iter(())), None) for label in labels]
    lacking = [label for label, text in zip(labels, found, strict=True) if text is None]
    written = iter(write(lacking) if lacking else [])
    return [next(written) if text is None else text for text in found]
