"""The common part of private prediction: one paid stage, whose rows are the corpus."""

from collections.abc import Callable, Mapping
from functools import cached_property
from math import ceil
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from dpsynth_assets.attacks.logit_moves import PassShape
from dpsynth_assets.files.whole import Room, bytes_of_texts
from dpsynth_assets.methods.base import Method, mechanism_of, planned
from dpsynth_assets.methods.inputs import PublicInputs
from dpsynth_assets.methods.private_prediction.config import PrivatePredictionConfig
from dpsynth_assets.methods.private_prediction.corpus import (
    BatchTokens,
    Drawing,
)
from dpsynth_assets.methods.private_prediction.declared_batches import DeclaredBatches
from dpsynth_assets.methods.private_prediction.decoding import (
    decoder_parameters,
    prompt_columns,
)
from dpsynth_assets.methods.private_prediction.passes import generate_corpus
from dpsynth_assets.methods.private_prediction.planted_keys import batches_task
from dpsynth_assets.methods.private_prediction.preconditions import check_batches, logits_rest_on
from dpsynth_assets.methods.private_prediction.split_batches import split_batches
from dpsynth_assets.methods.private_prediction.vocabulary_tails import (
    clipped_tail,
    declared_vocabulary,
)
from dpsynth_assets.methods.shared_histograms import CLUSTER_HISTOGRAM
from dpsynth_assets.methods.stages import (
    CANDIDATE_CORPUS,
    MethodPlan,
    Stage,
    StageRelease,
    StageRun,
    SyntheticCorpus,
    Tail,
    with_corpora_behind,
)
from dpsynth_assets.methods.work import PublicSizes, Work
from dpsynth_assets.models.decoding.writing import ROWS_TOGETHER
from dpsynth_assets.privacy.accounting import epsilon_of
from dpsynth_assets.privacy.events import Event
from dpsynth_assets.privacy.guarantees import Cost, Release
from dpsynth_assets.privacy.renyi import zcdp_rho
from dpsynth_assets.privacy.token_selection import MeanTokenMechanism

if TYPE_CHECKING:
    from dpsynth_assets.attacks.reconstruction import KeysWritten

BatchesT = TypeVar("BatchesT", bound=PrivatePredictionConfig)


class BatchPrediction(Method[BatchesT]):
    """Rows drawn token by token from the aggregated logits of the contexts of a batch.

    They are themselves the paid release.
    """

    needs_embeddings: ClassVar[bool] = False

    @property
    def public_inputs(self) -> frozenset[str]:
        """The language model, and the centres over which a histogram may be released."""
        return frozenset({"public_language_model", "public_clusters"})

    follows_schema = True
    """Every token of a batch is drawn under the schema."""

    @cached_property
    def declared(self) -> DeclaredBatches:
        """The batches, as public facts decide them."""
        return DeclaredBatches(
            config=self.config, terms=self.terms, clustered=self.needs_embeddings
        )

    def stages(self) -> tuple[Stage, ...]:
        """The corpus, whose passes workers draw where records are in shards.

        Not where vLLM decodes: one engine takes a GPU whole, and the self-test that the charge
        states is of the engine that draws.
        """
        stage = Stage(
            name=CANDIDATE_CORPUS,
            title="Rows whose tokens are drawn one after another from private prompts.",
            kinds=("pytorch", "polars"),
            needs_embeddings=self.needs_embeddings,
            shared=(CLUSTER_HISTOGRAM,) if self.terms.has_cluster_histogram else (),
            resumes_by="passes",
            reads=self.public_inputs,
            tested=self.tested,
            identity=self.identity,
            in_parts=not (self.terms.decodes_in_vllm or self.reads_weights),
            follows_clusters=self.declared.uses_histogram,
            examples_in_prompt=self.config.examples_per_context,
            work=self.work,
            check=self.check_public,
            takes=self.room,
            draws=self.release,
        )
        return (stage,)

    @property
    def compares_with_public_prompts(self) -> bool:
        """Whether each batch has a public prompt that is decoded beside it."""
        return self.config.support is not None

    @property
    def matched_epsilon(self) -> float | None:
        """ε by which private tokens are counted instead of the target; None: by the target."""
        return None

    @property
    def tail(self) -> Tail:
        """Estimates the tail of draws from clipped logits, by the settings and the vocabulary."""
        return clipped_tail(self.declared, declared_vocabulary(self.terms.language_model))

    def tested(self, public: PublicInputs) -> Mapping[str, Any]:
        """States the self-test that a slack of 0 rests on, or what was measured of rounding."""
        return logits_rest_on(self, public.language_model)

    def pass_shape(self, language_model: Any) -> PassShape:
        """What a forward pass holds at most, from settings and public labels."""
        config, texts = self.config, self.terms.label_texts
        examples = config.examples_per_context
        columns = prompt_columns(language_model, texts, examples, config.max_example_tokens)
        return PassShape(
            rows=self.declared.rows_at_hand, columns=columns, new_tokens=config.max_document_tokens
        )

    def identity(self, inputs: Mapping[str, str]) -> dict[str, Any]:
        """Writes inputs under the names that ledgers have held from the first."""
        names = {
            "language_model": "public_language_model",
            "public_clusters": "public_clusters",
            "cluster_histogram": CLUSTER_HISTOGRAM,
        }
        read = {name: inputs.get(artifact, "") for name, artifact in names.items()}
        corpora = {
            folder: inputs.get(f"corpus:{folder}", inputs[folder])
            for folder in self.corpora
            if folder in inputs
        }
        return {"inputs": with_corpora_behind(read, corpora)}

    @cached_property
    def mean_mechanism(self) -> MeanTokenMechanism:
        """Draws from the mean of clipped logits, at the settings and terms of this method."""
        return MeanTokenMechanism(
            batch=self.declared.facts,
            clip_bound=self.config.clip_bound,
            temperature=self.config.temperature,
            public_top_k=self.config.support,
        )

    def check_public(self, public: PublicInputs) -> None:
        """Asks for the batches' cells, and for room for prompts with their documents.

        **Privacy** Reads settings, the public model and the released histogram only.
        """
        check_batches(self, public)

    def work(self, plan: MethodPlan, sizes: PublicSizes) -> Work:
        """Counts the contexts of all batches, and the texts that are finished publicly."""
        config, tokens = self.config, plan.tokens_per_batch or 0
        batches, size = self.declared.expected_batches(sizes.records), config.expected_batch_size
        examples, contexts = config.examples_per_context, batches * size
        read = sizes.prompt(examples, config.max_example_tokens)
        read -= sizes.shared_start(examples)  # Read once, for all contexts.
        beside = int(self.compares_with_public_prompts)
        drawn = Work(
            read=contexts * read,
            steps=ceil(batches / config.batches_per_forward) * tokens * (1 + beside),
            written=batches * tokens * (size + beside),
        )
        if config.on_exhaustion == "drop":
            return drawn
        left = config.max_document_tokens / 2
        return drawn + sizes.writing(batches, sizes.frame(0) + left, left, rows=ROWS_TOGETHER)

    def room(self, stage: Stage, public: PublicInputs) -> Room:
        """Counts the tokens of all batches, each with a public document that ends it."""
        private = int(stage.settings["tokens_per_batch"])
        tokens = max(private, self.config.most_tokens or 0)
        if self.terms.json_schema is not None:  # What the schema decides is not among them.
            tokens *= self.config.max_document_tokens
        tokens += self.config.max_document_tokens
        texts = bytes_of_texts(self.declared.most_batches(public), tokens)
        return Room(release=texts, kept=texts, corpus=texts)

    def release(self, run: StageRun) -> Release[StageRelease]:
        """Draws the planned private tokens of every batch; each method's module says how.

        **Privacy** The planned event, for every dataset: r adaptive draws for each batch, batches
        in parallel. Charged in full even where a batch stops early. A public prompt is decoded
        beside its batch in passes of its own.
        """
        drawn = mechanism_of(run.stage, BatchTokens)  # type: ignore[type-abstract]
        corpus, _ = self.generated(run)
        return Release(value=corpus, cost=Cost(guarantee=self.guarantee, event=drawn.event()))

    def generated(self, run: StageRun) -> tuple[SyntheticCorpus, Drawing]:
        """Draws the rows, and gives what drew them, which knows realised costs."""
        batches = split_batches(self.declared, run.private, run.public)
        drawing = Drawing(method=self, stage=run.stage, batches=batches, public=run.public)
        return generate_corpus(drawing, run.private, run.progress), drawing

    def reconstruct(self, target_epsilon: float, model: Any) -> "KeysWritten | None":
        """Runs the method on planted keys (`planted_keys`)."""
        task = batches_task(self, target_epsilon, model)
        return None if task is None else task.run()

    def planned_tokens(
        self, mechanism: BatchTokens, parameters: Mapping[str, Any], target_epsilon: float
    ) -> MethodPlan:
        """Plans r private tokens a batch.

        Args:
            mechanism: The tokens, with what draws them; without an event where nothing but an
                ex-post bound is known.
            parameters: What the ledger keeps beside the settings.
            target_epsilon: ε that the tokens were sized by.

        Raises:
            ValueError: This number of tokens cannot be drawn, or not at this price.
        """
        tokens = mechanism.tokens
        self.declared.require(tokens, target_epsilon)
        if mechanism.event() is not None:
            self._require_composition()
        computed = {"tokens_per_batch": tokens, **decoder_parameters(self.terms)}
        return planned(
            self,
            {CANDIDATE_CORPUS: mechanism},
            {**self.config.stated(), **computed, **parameters},
            tail=self.tail,
            tokens_per_batch=tokens,
            rows_estimate=self.declared.rows_estimate(tokens),
        )

    @property
    def draws_apart(self) -> bool:
        """Whether batches of a pass may draw at different steps: some tokens are not drawn."""
        return self.terms.json_schema is not None

    def _require_composition(self) -> None:
        """Refuses an exact composition of draws whose number of steps is not r; zCDP adds up.

        Rounding lets a record move the draws of other batches of its pass. Where those come at
        other steps than its own, there are more than r joint draws, of ranges that follow what was
        drawn: their ρ adds up to no more than is charged, and that is all that is proved.
        """
        facts = self.declared.facts
        moved = self.draws_apart and facts.logit_slack > 0 and facts.batches_per_pass > 1
        if moved and self.terms.accountant == "tight":
            raise ValueError(
                f"Expected budget.accountant: zcdp for {self.name} where batches of a forward pass "
                "draw at different steps and logit_slack is charged, got tight. Set it, or "
                "batches_per_forward: 1, or decode exactly."
            )


def tokens_within(price: Callable[[int], Event], target_epsilon: float, delta: float) -> int:
    """Sizes the most private tokens a batch by ρ: r tokens cost r times the ρ of one.

    Args:
        price: Event of a number of tokens.
        target_epsilon: ε that they may cost alone.
        delta: Public constant δ.
    """
    if target_epsilon <= 0:
        return 0
    tokens = int(zcdp_rho(target_epsilon, delta) / float(price(1).rho))
    if tokens and epsilon_of([price(tokens)], delta, "zcdp") > target_epsilon:
        tokens -= 1  # The quotient was rounded up to a whole number.
    return tokens
