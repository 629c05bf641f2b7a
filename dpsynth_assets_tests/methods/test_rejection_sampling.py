"""Rejection sampling keeps places, order and bounds, and tells what it did."""

from types import SimpleNamespace

import polars as pl
import pytest
from pydantic import ValidationError

from dpsynth_assets.methods.inputs import PublicInputs, silent
from dpsynth_assets.methods.private_prediction.config import MeanUniformConfig
from dpsynth_assets.methods.rejection_sampling import (
    EVERY_ROW,
    RejectionSettings,
    RowFilter,
    kept_rows,
    open_judge,
    round_seed,
    write_accepted,
)
from dpsynth_assets.models.judges import JudgeError, Verdict
from dpsynth_assets.models.row_rules import RULES
from dpsynth_assets.releases.store import told_content


class Digits:
    """Accepts texts whose last digit is at least 5."""

    facts = {"judge": "digits", "threshold": 5}  # noqa: RUF012

    def __init__(self):
        self.seen = []

    def judge(self, texts, progress=None):
        self.seen += texts
        scores = [int(text[-1]) for text in texts]
        if progress is not None:
            progress(1.0)
        return [Verdict(score >= 5, float(score)) for score in scores]


class Writer:
    """Row of a place: improves by one with each round."""

    def __init__(self):
        self.rounds = []

    def __call__(self, places, round_number, progress):
        self.rounds.append(list(places))
        progress(1.0, "rows written")
        return [f"place {place}: {place + round_number}" for place in places]


def filter_of(judging=None, words="", **settings):
    """What keeps every text that the judge accepts, unless rules are asked for."""
    return RowFilter(
        settings=RejectionSettings(**{"rules": ()} | settings), judge=judging, words=words
    )


def accept(rows, *, rounds=10, writer=None, progress=silent, judge=None):
    writer = writer or Writer()
    kept = filter_of(judge or Digits(), rounds=rounds)
    return *write_accepted(writer, kept, rows, progress), writer


def test_every_place_keeps_its_first_accepted_row_and_only_others_are_written_again():
    rows, facts, writer = accept(8)
    assert rows == [f"place {n}: {max(n, 5)}" for n in range(8)]
    assert writer.rounds == [[*range(8)], *([*range(left)] for left in (5, 4, 3, 2, 1))]
    assert facts["candidates"] == 8 + 5 + 4 + 3 + 2 + 1
    assert facts["acceptance_rate"] == round(8 / 23, 4)
    assert (facts["rounds"], facts["places_left_empty"], facts["threshold"]) == (6, 0, 5)
    assert facts["mean_score_accepted"] == pytest.approx((6 * 5 + 6 + 7) / 8)
    assert facts["mean_score_candidates"] < facts["mean_score_accepted"]


def test_rounds_are_bounded_and_empty_places_are_told():
    rows, facts, writer = accept(8, rounds=3)
    assert rows[:3] == [None, None, None]
    assert None not in rows[3:]
    assert len(writer.rounds) == 3
    assert facts["places_left_empty"] == 3


def test_the_best_of_several_candidates_is_kept_and_the_rest_of_the_rounds_fill_places():
    def write(places, round_number, _progress):
        return [f"place {place}: {(place + 7 * round_number) % 10}" for place in places]

    rows, facts = write_accepted(write, filter_of(Digits(), judge="rubric", best_of=3), 6, silent)
    scores = [max((place + 7 * n) % 10 for n in range(3)) for place in range(6)]
    assert rows == [f"place {place}: {score}" for place, score in enumerate(scores)]
    assert facts["candidates"] == 18
    with pytest.raises(ValidationError, match="1 without a judge, got 2"):
        RejectionSettings(best_of=2)


def test_rows_without_a_word_are_rejected_unseen():
    def blank_first(places, round_number, _progress):
        return [" \n" if round_number == 0 and place else "9" for place in places]

    judge = Digits()
    rows, facts, _ = accept(3, writer=blank_first, judge=judge)
    assert rows == ["9"] * 3
    assert facts["turned_down"] == {"blank": 2}
    assert judge.seen == ["9"] * 3


def test_candidates_may_be_more_than_text():
    def pairs(places, round_number, _progress):
        return [(f"{place + round_number}", place) for place in places]

    kept = filter_of(Digits())
    rows, _ = write_accepted(pairs, kept, 3, silent, text_of=lambda row: row[0])
    assert [row[1] for row in rows] == [0, 1, 2]


def test_progress_never_falls_and_ends_at_one():
    shares = []
    accept(8, progress=lambda share, _: shares.append(share))
    assert shares == sorted(shares)
    assert shares[-1] == 1
    assert shares[0] >= 0


def test_no_accepted_row_at_all_is_an_error_in_one_line():
    with pytest.raises(JudgeError, match=r"got none in 6 candidates \(judge 6\); lower") as raised:
        accept(3, rounds=2)
    assert "place" not in str(raised.value)


def test_the_first_round_draws_as_without_a_judge_and_others_anew():
    assert round_seed(41, 0) == 41
    seeds = {round_seed(seed, number) for seed in (41, 42) for number in range(20)}
    assert len(seeds) == 40


def test_settings_that_contradict_each_other_are_refused():
    with pytest.raises(ValidationError, match="use judge: rubric"):
        RejectionSettings(engine={"kind": "transformers"})


def test_a_judge_reads_only_what_it_needs():
    rubric = RejectionSettings(judge="rubric", engine={"model": "owner/judge"})
    assert rubric.public_inputs() == frozenset()
    assert RejectionSettings().public_inputs() == frozenset()
    assert "public_corpus" in RejectionSettings(judge="likelihood").public_inputs()
    assert RejectionSettings(judge="rubric").public_inputs() == {"public_language_model"}


def test_a_judge_without_model_text_or_engine_says_what_is_missing():
    nothing = PublicInputs(language_model=None)
    with pytest.raises(ValueError, match="public_language_model"):
        open_judge(RejectionSettings(judge="likelihood"), nothing)
    with pytest.raises(ValueError, match="public_corpus"):
        open_judge(RejectionSettings(judge="likelihood"), PublicInputs(language_model=object()))
    with pytest.raises(JudgeError, match=r"write rejection\.engine"):
        open_judge(RejectionSettings(judge="rubric"), nothing)


def test_the_datasets_engine_judges_where_none_is_declared():
    engine = SimpleNamespace(name="given", spent={}, spent_since=lambda _: {})
    public = PublicInputs(language_model=None, engine=engine, public_records=pl.DataFrame())
    judge = open_judge(RejectionSettings(judge="rubric", min_overall=3), public)
    assert judge.facts["judge_model"] == "given"
    assert judge.facts["threshold_overall"] == 3


SOUND = [
    "The soup came cold.",
    "A waiter was kind.",
    "We waited for half an hour.",
    "No bread left!",
]
BROKEN = {
    "blank": "...",
    "placeholders": "Dear [Bank Name], thank you.",
    "language": "lint.co.in 19:22:03,41,984",
    "repeats": "We waited for half an hour!",
    "abuse": "You are an asshole.",
}


def rows_of(texts):
    return pl.DataFrame({"text": texts, "place": range(len(texts))})


def test_paid_rows_that_break_a_rule_are_left_out_and_counted_by_it():
    rows, facts = kept_rows(rows_of([*SOUND, *BROKEN.values()][:7]), filter_of(rules=RULES))
    assert rows["text"].to_list() == SOUND
    assert facts["turned_down"] == {"blank": 1, "language": 1, "placeholders": 1}
    assert facts["acceptance_rate"] == round(4 / 7, 4)
    assert "rules_fit" not in facts
    assert told_content({**facts, "tokens": 9}, None, None) == {"kept_rows": facts}


def test_rules_that_most_paid_rows_break_leave_out_none():
    numbers = rows_of(["41,984", "17:03:11", SOUND[0]])
    rows, facts = kept_rows(numbers, filter_of(rules=RULES))
    assert rows.equals(numbers)
    assert facts["rules_fit"] is False
    assert kept_rows(numbers, EVERY_ROW)[0].equals(numbers)


def test_a_domain_that_has_abuse_keeps_it():
    abused = rows_of([*SOUND, BROKEN["abuse"]])
    for words, height in (("Reviews", 4), ("Comments with insults, for moderation", 5)):
        assert kept_rows(abused, filter_of(words=words, rules=RULES))[0].height == height


def test_free_rows_that_break_a_rule_are_written_again_in_their_place():
    def write(places, round_number, _progress):
        return [SOUND[place] if round_number else [*BROKEN.values()][place] for place in places]

    rows, facts = write_accepted(write, filter_of(rules=RULES[:2]), 3, silent)
    assert rows == SOUND[:3]
    assert facts["acceptance_rate"] == 0.5


def test_rows_that_private_tokens_draw_take_no_judge_that_reads_another_artifact():
    with pytest.raises(ValidationError, match="got one that reads public_corpus"):
        MeanUniformConfig(rejection={"judge": "likelihood"})
    assert "rejection" not in MeanUniformConfig().model_dump()  # As ledgers have it.
