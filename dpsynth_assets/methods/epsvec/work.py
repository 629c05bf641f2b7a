"""What the stages of EPSVec compute, counted from settings and public facts."""

from dpsynth_assets.methods.base import CohortTerms
from dpsynth_assets.methods.epsvec.config import EpsVecConfig
from dpsynth_assets.methods.epsvec.stages import CANDIDATES, NEGATIVES, SHOTS, VECTORS
from dpsynth_assets.methods.epsvec.states import BLOCK_SHARE, BLOCK_START
from dpsynth_assets.methods.stages import CANDIDATE_CORPUS
from dpsynth_assets.methods.work import PublicSizes, Work


def counted_work(config: EpsVecConfig, terms: CohortTerms, stage: str, sizes: PublicSizes) -> Work:
    """Work of one stage, or of writing the rows.

    Args:
        config: Settings.
        terms: Declared labels, and the engine with the rows it writes together.
        stage: Name of a stage, or `candidate_corpus`.
        sizes: Declared numbers and public lengths.
    """
    labels, rows, longest = len(terms.labels), terms.engine.batch_rows, config.max_document_tokens
    shots = config.shots if config.use_fixed_shots else 0
    prompt = sizes.prompt(shots, longest)
    different = None if config.shots_kept > shots > 0 else labels
    if stage == CANDIDATES and config.candidate_source == "model":
        texts = labels * config.candidates
        return sizes.writing(texts, sizes.frame(0), longest, rows=rows, different=labels)
    if stage == SHOTS and config.noisy_shots:
        return Work(embedded=labels * config.candidates * sizes.text_tokens)
    if stage == NEGATIVES:
        texts = labels * config.negatives
        bounded = config.clip_documents if config.clip_bound is None else 0
        read = _states(config, texts + min(bounded, sizes.documents), prompt, labels, sizes)
        return sizes.writing(texts, prompt, longest, rows=rows, different=different) + read
    if stage == VECTORS:
        records = min(config.vector_records or sizes.records, sizes.records)
        return _states(config, records, prompt, labels, sizes)
    if stage == CANDIDATE_CORPUS:
        judged = Work() if config.rejection is None else config.rejection.work(config.rows, sizes)
        each = sizes.writing(  # Labels are steered, and so written, one by one.
            config.rows / labels,
            prompt,
            config.max_new_tokens,
            rows=rows,
            different=None if different is None else 1,
        )
        return sum([each] * labels, start=judged)
    return Work()


def _states(
    config: EpsVecConfig, texts: float, prompt: float, labels: int, sizes: PublicSizes
) -> Work:
    """Reading behind a prompt that is read once a label, up to the last layer of the block."""
    depth = BLOCK_START + BLOCK_SHARE if config.layers is None else 1.0
    tokens = texts * sizes.text(config.max_document_tokens) + labels * prompt
    return Work(read=depth * tokens)
