"""Facts are held by as many records as declared, and no private records lose their noise."""

from types import SimpleNamespace

import polars as pl
import pytest
from invented_facts import HOLDERS, facts, notes
from no_noise import WRITERS, without_noise

from dpsynth_assets.datasets.benchmark_spec import BenchmarkDataset


def test_each_fact_is_stated_by_its_number_of_records_and_by_no_public_text():
    known, others = facts(3), notes(facts(3, public=True), seed=1)
    texts = notes(known, seed=0)
    assert [fact.holders for fact in known] == [each for each in HOLDERS for _ in range(3)]
    assert [sum(map(fact.stated_in, texts)) for fact in known] == [f.holders for f in known]
    assert len(texts) == 3 * sum(HOLDERS)
    assert not any(fact.name in text for fact in known for text in others)
    assert all(fact.value not in fact.others and len(set(fact.others)) == 3 for fact in known)


@pytest.mark.parametrize("method", WRITERS)
def test_no_method_is_without_noise_for_records_that_are_not_declared_public(method):
    unchecked = BenchmarkDataset.model_construct(path="x.csv", public=False, domain="x")
    for dataset in (unchecked, SimpleNamespace(public=True), None):
        with pytest.raises(ValueError, match="Expected a dataset of a benchmark with public: true"):
            without_noise(method, dataset, pl.DataFrame(), None, {}, rows=1, seed=0)
