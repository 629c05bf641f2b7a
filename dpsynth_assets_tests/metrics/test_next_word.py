"""Laws of next-word prediction: the same budget and vocabulary for every corpus, real text last."""

import math

import numpy as np
import pytest
import torch

from dpsynth_assets.datasets.evaluation_section import NextWordSettings
from dpsynth_assets.metrics.downstream import next_word_accuracy
from dpsynth_assets.metrics.evaluation import (
    Evaluation,
    EvaluationSettings,
    PrivateReference,
)
from dpsynth_assets.metrics.metric import ScoredSide
from dpsynth_assets.models import next_word_model
from dpsynth_assets.models.next_word_model import (
    PublicWordPieces,
    encode_texts,
    load_next_word_model,
    new_next_word_model,
    save_next_word_model,
    score_next_words,
    train_next_word_model,
)

SMALL = NextWordSettings(
    vocabulary=3000, width=16, heads=2, feed_forward=16, max_document_tokens=16,
    token_budget=3000, batch_tokens=128, learning_rate=2e-2,
)  # fmt: skip
RIDES = [f"the ferry to harbour {n % 9} left late again" for n in range(60)]
CAKES = [f"fold {n % 9} eggs into the sweet almond dough" for n in range(60)]


def test_a_corpus_like_the_real_text_teaches_more_of_its_words():
    like = next_word_accuracy(RIDES[:30], RIDES[30:], SMALL)
    unlike = next_word_accuracy(CAKES[:30], RIDES[30:], SMALL)
    assert like.accuracy > unlike.accuracy + 0.3
    assert like.perplexity < unlike.perplexity
    assert like.tokens == unlike.tokens


def test_two_sizes_have_a_score_each():
    larger = SMALL.model_copy(update={"width": 32})
    sizes = {"next_word": SMALL, "next_word_larger": larger}
    blank, real = np.zeros((60, 2), np.float32), [""] * 60
    rides = ScoredSide(texts=RIDES, labels=real, features=blank)
    reference = PrivateReference(source=rides, held_out=rides)
    corpus = ScoredSide(name="corpus", texts=CAKES, labels=real, features=blank)
    settings = EvaluationSettings(resamples=9, **sizes)
    scores = Evaluation(reference=reference, settings=settings).scores(corpus)
    for name, size in (("next_word_accuracy", SMALL), ("next_word_accuracy_larger", larger)):
        assert scores[name] == next_word_accuracy(CAKES, RIDES, size).accuracy


def test_equal_arguments_give_equal_scores():
    assert next_word_accuracy(CAKES, RIDES, SMALL) == next_word_accuracy(CAKES, RIDES, SMALL)


def test_every_corpus_gets_the_same_number_of_training_tokens(monkeypatch):
    spent = []
    real = next_word_model._losses

    def counting(model, rows):
        losses, count = real(model, rows)
        spent[-1] += count
        return losses, count

    monkeypatch.setattr(next_word_model, "_losses", counting)
    for texts in (RIDES[:5], RIDES * 20):
        spent.append(0)
        next_word_accuracy(texts, CAKES, SMALL)
    assert max(spent) - min(spent) <= SMALL.batch_tokens
    assert min(spent) >= SMALL.token_budget


@pytest.mark.parametrize(("train", "test"), [([""], RIDES), (RIDES, ["", "  "])])
def test_a_side_without_words_is_refused(train, test):
    with pytest.raises(ValueError, match="at least one text with a word"):
        next_word_accuracy(train, test, SMALL.model_copy(update={"token_budget": 300}))


def test_accuracy_and_perplexity_are_those_of_the_words_alone():
    model = new_next_word_model(SMALL)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()  # every token equally likely, ties go to the padding token
    scores = score_next_words(model, RIDES, SMALL)
    assert scores.perplexity == pytest.approx(len(PublicWordPieces(3000)), rel=1e-4)
    assert scores.accuracy == 0
    assert scores.tokens == sum(len(each) - 2 for each in encode_texts(RIDES, SMALL))


def test_words_outside_the_vocabulary_are_missed_and_no_part_of_perplexity():
    model = new_next_word_model(SMALL)
    train_next_word_model(model, ["☃ ☃ ☃ ☃"] * 4, SMALL)
    scores = score_next_words(model, ["☃ ☃ ☃"], SMALL)
    assert (scores.accuracy, scores.perplexity, scores.tokens) == (0, math.inf, 3)


def test_a_saved_model_scores_the_same(tmp_path):
    model = new_next_word_model(SMALL)
    train_next_word_model(model, RIDES, SMALL)
    save_next_word_model(model, SMALL, tmp_path)
    loaded, settings = load_next_word_model(tmp_path)
    assert settings == SMALL
    assert score_next_words(loaded, CAKES, SMALL) == score_next_words(model, CAKES, SMALL)


# The public vocabulary


def test_any_lower_case_word_is_spelled_without_an_unknown_piece():
    pieces = PublicWordPieces(3000)
    words = "zyzzyva, qwertz! 42 jackdaws' (sphinx) of-quartz"
    (ids,) = pieces.encode([words], 100)
    assert pieces.unknown_token_id not in ids
    assert ids[0] == pieces.begin_token_id
    assert ids[-1] == pieces.end_token_id
    spelled = "".join(pieces.pieces[token] for token in ids[1:-1])
    assert spelled.replace("##", "") == words.replace(" ", "")


def test_a_larger_vocabulary_extends_a_smaller_one():
    small, large = PublicWordPieces(3000), PublicWordPieces(4096)
    assert large.pieces[: len(small)] == small.pieces
    assert len(set(large.pieces)) == len(large) == 4096
    longer, shorter = (len(each.encode(RIDES[:1], 99)[0]) for each in (small, large))
    assert longer >= shorter


def test_documents_are_cut_and_still_end():
    (ids,) = PublicWordPieces(3000).encode(["one two three four five"], 3)
    assert len(ids) == 5
    assert ids[-1] == PublicWordPieces.end_token_id


def test_embeddings_are_public_constants_of_the_asked_width():
    one, two = (PublicWordPieces(3000).embeddings(8) for _ in range(2))
    assert one.shape == (3000, 8)
    assert np.array_equal(one, two)
    assert one.std() == pytest.approx(1.0, abs=1e-5)
