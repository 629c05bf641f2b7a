"""The likelihood judge scores what the model says of a text's own tokens, against public text."""

import numpy as np
import pytest
import torch
from mailboxes import public_rows

from dpsynth_assets.models import judges
from dpsynth_assets.models.judges import JudgeError, LikelihoodJudge


@pytest.fixture(scope="module")
def public():
    return [row["text"] for row in public_rows(60, seed=0)]


@pytest.fixture(scope="module")
def judge(toy_model, public):
    return LikelihoodJudge(toy_model, public, lowest_quantile=0.1, max_text_tokens=64)


def by_hand(model, text, bound=64):
    """Token by token, one text at a time."""
    start = model.prompt_ids("", (), 1)
    ids = model.encode(text)[:bound]
    total = 0.0
    for place, token in enumerate(ids):
        rows = torch.tensor([[*start, *ids[:place]]])
        total += float(model.model(rows).logits[0, -1].double().log_softmax(0)[token])
    return total / len(ids)


def test_scores_are_mean_log_probabilities_whatever_shares_the_batch(judge, toy_model, public):
    scores = judge.log_likelihoods(public)
    for row in (0, 17, 59):
        assert scores[row] == pytest.approx(by_hand(toy_model, public[row]), abs=1e-4)
    assert (scores < 0).all()
    np.testing.assert_allclose(judge.log_likelihoods(public[::-1])[::-1], scores, atol=1e-4)


def test_thresholds_are_quantiles_of_public_text(judge, public):
    scores = judge.log_likelihoods(public)
    assert judge.lowest == pytest.approx(np.quantile(scores, 0.1), abs=1e-4)
    assert judge.highest == pytest.approx(scores.max(), abs=1e-4)
    accepted = [verdict.accepted for verdict in judge.judge(public)]
    assert sum(accepted) == pytest.approx(0.9 * len(public), abs=1)


def test_noise_is_rejected_and_so_is_what_has_no_token(judge):
    noise = "§¶ŧ→ŋđ" * 8
    verdicts = judge.judge([noise, ""])
    assert not any(verdict.accepted for verdict in verdicts)
    assert verdicts[0].score is not None
    assert verdicts[1].score is None


def test_what_is_likelier_than_public_text_is_rejected(toy_model, public):
    """It turns down loops: the likeliest public texts stand for them.

    The eleventh text is the threshold itself: the last bits of its score, which follow the padding
    of its pass, decide.
    """
    likeliest = LikelihoodJudge(toy_model, public).log_likelihoods(public).argsort()[::-1]
    others = [public[row] for row in likeliest[10:]]
    verdicts = LikelihoodJudge(toy_model, others, lowest_quantile=0).judge(public)
    assert not any(verdicts[row].accepted for row in likeliest[:10])
    assert all(verdicts[row].accepted for row in likeliest[11:])


def test_facts_state_thresholds(judge, toy_model):
    assert judge.facts["judge"] == "likelihood"
    assert judge.facts["judge_model"] == toy_model.name
    assert judge.facts["threshold_lowest"] == pytest.approx(judge.lowest, abs=1e-4)
    assert judge.facts["threshold_texts"] == 60


def test_progress_grows_to_one(judge, public):
    shares = []
    judge.judge(public, shares.append)
    assert shares == sorted(shares)
    assert shares[-1] == 1


def test_long_and_many_texts_stay_within_one_passs_bounds(judge, monkeypatch, public):
    sizes = []
    real = judges.losses_after
    monkeypatch.setattr(judges, "losses_after", lambda *all: sizes.append(all[1]) or real(*all))
    judge.log_likelihoods(public * 5)
    assert sum(map(len, sizes)) == 300
    assert max(len(rows) * max(map(len, rows)) for rows in sizes) <= 4096
    assert len(sizes) < 12


def test_few_public_texts_give_no_threshold(toy_model, public):
    with pytest.raises(JudgeError, match="at least 10 public texts"):
        LikelihoodJudge(toy_model, public[:9])
