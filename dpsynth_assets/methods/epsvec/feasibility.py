"""Whether EPSVec can run from declared facts, and with which sample of the records."""

from dpsynth_assets.methods.base import CohortTerms
from dpsynth_assets.methods.epsvec.config import EpsVecConfig
from dpsynth_assets.privacy.rounded import rounded_up
from dpsynth_assets.privacy.units import NeighboringRelation


def sampling_probability_of(config: EpsVecConfig, terms: CohortTerms) -> float:
    """Reads q from declared facts; 1 where all records are used."""
    if config.vector_records is None or terms.public_records is None:
        return 1.0
    return min(1.0, config.vector_records / terms.public_records)


def refusal_of(config: EpsVecConfig, terms: CohortTerms, target_epsilon: float) -> str | None:
    """Why the method cannot run, in one line; None where it can."""
    endpoint = terms.engine.kind == "openai"
    if endpoint and config.use_vectors:
        return (
            "Expected an engine that runs the model on this machine for epsvec's dataset vectors, "
            "which read private text inside it, got an OpenAI-compatible endpoint, which never "
            "gets private text. Set engine.kind to transformers or vllm, or use_vectors: false."
        )
    if endpoint and config.prompt == "document" and terms.prompts is None:
        return (
            "Expected prompts as text for an OpenAI-compatible endpoint, got prompt: document, "
            "which is written in the tokens of a local model. Set prompt to base or instruction."
        )
    if config.use_vectors and config.vector_records is not None and terms.public_records is None:
        return (
            "Expected a declared number of records, from which epsvec computes the probability of "
            "drawing a record, got none. Declare public_facts.records if the number is public, or "
            "drop vector_records."
        )
    unknown = terms.public_records is None and not config.noisy_shots
    if config.use_vectors and config.strength_unit == "difference" and unknown:
        return (
            "Expected a number of records, declared or counted with the fixed shots, from which "
            "epsvec tells how far they lie from public text, got neither. Declare "
            "public_facts.records if the number is public, or set strength_unit: clip_bound."
        )
    replaced = terms.relation is NeighboringRelation.REPLACE_ONE
    if sampling_probability_of(config, terms) < 1 and replaced and terms.accountant == "zcdp":
        return (
            "Expected accountant tight or neighbours that add or remove for a sample of records, "
            "got zcdp and replace-one, whose bound forgets the sampling. Drop vector_records, or "
            "set budget.accountant: tight."
        )
    spends = config.use_vectors or config.noisy_shots
    if spends and target_epsilon <= 0:
        return (
            f"Expected target_epsilon > 0 for epsvec, got {rounded_up(target_epsilon)}. Give it "
            "a share."
        )
    return None
