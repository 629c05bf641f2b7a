import json
import math

import numpy as np
import pytest

from dpsynth_assets.metrics import text
from dpsynth_assets.metrics.evaluation import (
    Evaluation,
    EvaluationSettings,
    PrivateReference,
)
from dpsynth_assets.metrics.metric import ScoredSide, Sides
from dpsynth_assets.metrics.surviving_terms import MORE, SURVIVING_TERMS, least_holders
from dpsynth_assets.metrics.text import (
    distinct_n,
    distinct_openings,
    label_distance,
    length_distance,
    structure_scores,
    words_per_text,
)


@pytest.mark.parametrize(
    ("texts", "n", "share"),
    [
        (["a b c d"], 1, 1.0),
        (["a a a a"], 1, 0.25),
        (["a b", "A B"], 2, 0.5),
        (["a", "b"], 2, 0.0),  # n-grams do not cross texts
        ([], 1, 0.0),
    ],
)
def test_distinct_n_is_the_share_of_distinct_ngrams(texts, n, share):
    assert distinct_n(texts, n) == share


@pytest.mark.parametrize(
    ("texts", "share"),
    [(["a b c d", "A B C e", "a b d"], 2 / 3), (["a", "a b"], 1.0), (["", ""], 0.5), ([], 0.0)],
)
def test_openings_are_the_first_three_words(texts, share):
    assert distinct_openings(texts) == pytest.approx(share)


def test_distinct_n_reads_the_same_number_of_ngrams_whatever_the_size(monkeypatch):
    monkeypatch.setattr(text, "MOST_NGRAMS", 2)
    texts = ["a b", "a b", "a b"]
    assert distinct_n(texts, 2) == distinct_n(texts[:2], 2)


@pytest.mark.parametrize(
    ("labels", "other", "distance"),
    [("aabb", "ab", 0.0), ("aa", "bb", 1.0), ("aaab", "ab", 0.25), ("a", "ab", 0.5)],
)
def test_label_distance_is_total_variation(labels, other, distance):
    assert label_distance(labels, other) == pytest.approx(distance)
    assert label_distance(other, labels) == pytest.approx(distance)


def texts(counts):
    return ["w " * count for count in counts]


def test_a_word_more_in_every_text_is_a_distance_of_one():
    assert length_distance(texts([3, 7, 7]), texts([4, 8, 8])) == 1.0
    assert length_distance(texts([5, 5]), texts([5])) == 0.0
    assert words_per_text(["a b", "", " c "]).tolist() == [2, 0, 1]


# Laws of structure: what parses is JSON, what validates fulfils the schema, shares are of all.

SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "required": ["title", "cast"],
    "properties": {
        "title": {"type": "string"},
        "cast": {"type": "array", "items": {"$ref": "#/$defs/name"}},
        "href": {"type": "string", "pattern": r"^\S+$"},
    },
    "$defs": {"name": {"type": "string", "minLength": 1}},
}
VALID = {"title": "A", "cast": ["B"], "href": "A_b"}


def count(*texts, schema=SCHEMA):
    scores = structure_scores(texts, schema)
    return scores["samples"], scores["parsed"], scores["valid"]


def test_a_record_of_the_schema_parses_and_validates():
    assert count(json.dumps(VALID), "  " + json.dumps(VALID, indent=2)) == (2, 2, 2)


@pytest.mark.parametrize(
    "changes",
    [{"title": 7}, {"cast": [""]}, {"href": "a b"}, {"more": 1}],
)
def test_a_wrong_field_parses_and_does_not_validate(changes):
    assert count(json.dumps(VALID | changes)) == (1, 1, 0)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "free text",
        '{"title": "A"',
        '{"a": NaN}',
        "Infinity",
        "{} {}",
        "{'a': 1}",
        "[" * 100_000,
    ],
)
def test_what_is_no_json_does_not_parse(text):
    assert count(text, schema={}) == (1, 0, 0)


def test_a_text_that_nests_deeper_than_a_recursive_schema_can_follow_is_not_valid():
    schema = {"type": "array", "items": {"$ref": "#"}}
    assert count("[[]]", schema=schema) == (1, 1, 1)
    assert count("[" * 900 + "]" * 900, schema=schema)[2] == 0


def test_shares_are_of_all_samples_and_there_are_none_of_an_empty_corpus():
    counts = {"samples": 4, "parsed": 2, "valid": 1}
    found = structure_scores([json.dumps(VALID), "{}", "x", "y"], SCHEMA)
    assert found == counts | {"parse_rate": 0.5, "validation_rate": 0.25}
    none = {"samples": 0, "parsed": 0, "valid": 0, "parse_rate": None, "validation_rate": None}
    assert structure_scores([], SCHEMA) == none


def test_no_reference_is_fetched(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a schema reached for the network")

    monkeypatch.setattr("urllib.request.urlopen", refuse)
    with pytest.raises(Exception, match="example") as caught:
        structure_scores(["{}"], {"$ref": "https://example.com/schema.json"})
    assert not isinstance(caught.value, AssertionError)


def evaluate(settings):
    features = np.eye(4, dtype=np.float32)
    texts, blank = [json.dumps(VALID), json.dumps(VALID), "{}", "x"], [""] * 4
    corpus = ScoredSide(name="corpus", texts=texts, labels=blank, features=features)
    reference = PrivateReference(source=corpus, held_out=corpus.rows(np.arange(2)))
    evaluation = Evaluation(reference=reference, settings=settings)
    return evaluation.scores(corpus), evaluation.real_scores()


def test_an_evaluation_scores_structure_where_a_schema_is_declared():
    scores, real = evaluate(EvaluationSettings(record_schema=SCHEMA))
    assert (scores["parse_rate"], scores["validation_rate"]) == (0.75, 0.5)
    assert (real["parse_rate"], real["validation_rate"]) == (1.0, 1.0)


def test_an_evaluation_of_free_text_says_nothing_of_structure():
    scores, _ = evaluate(EvaluationSettings())
    assert (scores["parse_rate"], scores["validation_rate"]) == (None, None)


def test_constants_of_an_evaluation_do_not_repeat_the_schema():
    assert EvaluationSettings(record_schema=SCHEMA).to_json() == EvaluationSettings().to_json()


def test_shares_are_of_terms_that_public_text_lacks_by_how_many_records_hold_them():

    none = np.zeros((0, 2), dtype=np.float32)
    rare, often = ([f"{kind}{n}" for n in range(20)] for kind in ("rare", "often"))
    records = [*(rare * 3), *(often * 12), *(["everyday"] * 12), *(["few"] * 7)]
    side = {"texts": [" and ".join([*rare[:1], *often[:15], "everyday"])]}
    sides = Sides(
        corpus=ScoredSide(features=none, **side),
        held_out=ScoredSide(features=none),
        settings=EvaluationSettings(),
        labelled=False,
        reference=PrivateReference(
            source=ScoredSide(texts=records, labels=[], features=none),
            held_out=ScoredSide(texts=[], labels=[], features=none),
        ),
        public_texts=["Everyday words"],
    )  # fmt: skip
    found = [metric.of(sides) for metric in SURVIVING_TERMS]
    assert found == [1 / 20, None, 15 / 20, None, None, None]


@pytest.mark.parametrize(("epsilon", "delta"), [(1e-2, 0.0), (0.5, 1e-5), (1.0, 1e-2), (0.0, 3e-4)])
def test_fewer_holders_than_the_least_cannot_bring_a_term(epsilon, delta):
    # What k steps of p -> e^ε p + δ make of q, in closed form: its bound at 1 is not reached here.
    def reached(records):
        steps = math.expm1(records * epsilon) / math.expm1(epsilon) if epsilon else records
        return 0.001 * math.exp(records * epsilon) + delta * steps

    least = least_holders(epsilon, delta)
    assert reached(least - 1) <= 0.001 + MORE < reached(least)


def test_a_guarantee_of_no_difference_has_no_least_number_and_a_large_one_needs_one_record():
    assert least_holders(0.0, 0.0) is least_holders(1e-17, 0.0) is None
    assert (least_holders(10.0, 0.0), least_holders(math.inf, 0.0)) == (1, 1)
    # Near certainty the opposite event bounds: 1 - e^-ε (1 - p), here after one step and two.
    once = 1 - math.exp(-1) * 0.5
    assert once > 0.5 + MORE
    assert least_holders(1.0, 0.0, chance=0.5) == 1
