"""Corpora written through a real vLLM: the same rows as through transformers, at no charge."""

import numpy as np
import polars as pl
import pytest
from mailboxes import public_rows

from dpsynth_assets.datasets.engine import EngineSpec
from dpsynth_assets.methods.base import CohortTerms
from dpsynth_assets.methods.epsvec.config import EpsVecConfig
from dpsynth_assets.methods.epsvec.shots import FixedShots
from dpsynth_assets.methods.epsvec.states import scaffold_of
from dpsynth_assets.methods.epsvec.vectors import DatasetVectors
from dpsynth_assets.methods.epsvec.writing import Writer, write_corpus
from dpsynth_assets.methods.fine_tuning import DpFineTuning
from dpsynth_assets.methods.fine_tuning.config import DpFineTuningConfig
from dpsynth_assets.methods.inputs import PublicInputs, Released
from dpsynth_assets.methods.rejection_sampling import RejectionSettings, RowFilter
from dpsynth_assets.methods.stages import FINETUNED_GENERATOR as STAGE
from dpsynth_assets.models.judges import EngineJudge
from dpsynth_assets.privacy.guarantees import NeighboringRelation, PrivacyUnit

ROWS = 24
LABELS = ("billing", "delivery")


def silent(_share, _message):
    pass


@pytest.fixture(scope="module")
def documents():
    return pl.DataFrame(public_rows(60, seed=4))


def cohort_terms(engine):
    return CohortTerms(
        cohort="tickets",
        relation=NeighboringRelation.ADD_REMOVE,
        unit=PrivacyUnit(),
        epsilon=8.0,
        delta=1e-5,
        accountant="zcdp",
        labels=LABELS,
        label_texts=LABELS,
        engine=engine,
    )


def fine_tuned_corpus(folder, language_model, documents, engine, **changes):
    """What the corpus asset of a decoder-only generator writes."""
    config = DpFineTuningConfig(
        architecture="decoder_only", rows=ROWS, max_document_tokens=24, **changes
    )
    terms = cohort_terms(engine)
    public = PublicInputs(
        language_model=language_model,
        public_records=documents,
        released={STAGE: Released(reservation="r", facts={}, folder=folder)},
        seed=5,
    )
    return DpFineTuning(config, terms).write(public, ROWS, silent)


VLLM = EngineSpec(kind="vllm", cache_gib=0.25, batch_rows=8)
TRANSFORMERS = EngineSpec(device="cpu")


def test_a_fine_tuned_generator_writes_the_same_rows_through_both(
    folder, language_model, documents
):
    """Same seeds, same draws: a row may differ where rounding moves it across a boundary."""
    ours, theirs = (
        fine_tuned_corpus(folder, language_model, documents, engine)
        for engine in (VLLM, TRANSFORMERS)
    )
    assert (ours.facts["engine_kind"], theirs.facts["engine_kind"]) == ("vllm", "transformers")
    assert ours.rows["label"].equals(theirs.rows["label"])
    pairs = zip(ours.rows["text"], theirs.rows["text"], strict=True)
    assert sum(one == two for one, two in pairs) >= ROWS - 2
    assert ours.rows["text"].n_unique() > ROWS // 2


def steered_corpus(engine, documents, strength):
    """What the corpus asset of EPSVec writes: released vectors and fixed shots."""
    config = EpsVecConfig(
        layers=(1,),
        strengths=(strength,),
        strength_unit="absolute",
        temperature=1.0,
        max_new_tokens=24,
    )
    texts = documents["text"].to_list()
    states = engine.hidden_states(texts, [1])[1]
    gap = states[:30].mean(0) - states[30:].mean(0)
    vectors = DatasetVectors(
        directions=np.stack([gap, -gap])[:, None] / np.linalg.norm(gap),
        layers=(1,),
        labels=LABELS,
        clip_bounds=np.ones(1),
        signal_over_noise=np.ones((2, 1)),
        model=engine.name,
        cost={},
    )
    terms = cohort_terms(TRANSFORMERS)
    writer = Writer(
        engine=engine,
        scaffold=scaffold_of(config, terms, engine),
        shots=FixedShots(ranked=(tuple(texts[:2]), tuple(texts[2:4])), dp_records=(9.0, 8.0)),
        vectors=vectors,
        config=config,
        labels=LABELS,
        seed=9,
    )
    return write_corpus(writer, RowFilter(settings=RejectionSettings(rules=())), ROWS, silent)


def test_a_steered_corpus_equals_transformers(vllm_engine, transformers_engine, documents):
    ours, theirs = (
        steered_corpus(engine, documents, 1.5) for engine in (vllm_engine, transformers_engine)
    )
    assert ours.rows["label"].equals(theirs.rows["label"])
    pairs = zip(ours.rows["text"], theirs.rows["text"], strict=True)
    assert sum(one == two for one, two in pairs) >= ROWS - 2
    plain = steered_corpus(vllm_engine, documents, 0.0)
    assert not ours.rows.equals(plain.rows)


def test_a_rubric_judge_answers_in_its_form_and_as_through_transformers(
    vllm_engine, transformers_engine
):
    texts = ["The parcel came late.", "The bill was wrong.", "late The", "Good morning to all."]
    ours, theirs = (
        EngineJudge(engine, max_text_tokens=40)._scores(texts)
        for engine in (vllm_engine, transformers_engine)
    )
    assert None not in ours
    assert ours == theirs
