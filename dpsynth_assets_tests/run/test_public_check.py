"""Settings that cannot work fail before a charge, in one line that anybody may read."""

import numpy as np
import pytest

from dpsynth_assets.attacks.reconstruction import CopyingModel
from dpsynth_assets.methods.dataset_plan import stage_request
from dpsynth_assets.methods.inputs import PrivateInputs
from dpsynth_assets.methods.planning import plan_dataset
from dpsynth_assets.methods.shared_histograms import ClusterHistogram
from dpsynth_assets.models.prompt_templates import DocumentFormat, PromptedModel
from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.privacy.ledger import Ledger
from dpsynth_assets.public_base.making import OpenedModels
from dpsynth_assets.releases.store import StoredReleases
from dpsynth_assets.run.records import StoreRecords
from dpsynth_assets.run.runner import Reads, Runner
from dpsynth_assets.sensitive.store import StoredRecords
from dpsynth_assets_tests.declared import private

LABELS = ("a", "b")
HISTOGRAM = "shared/cluster_histogram"
BATCHES = {"expected_batch_size": 16, "clip_bound": 2.0, "max_document_tokens": 30}
POSITIONS = 8192
EMPTY = ((3, -2), (2, 7))
FULL = ((40, 30), (30, 20))


class FormattedModel(CopyingModel):
    """The copying model behind a document format."""

    begin_token_id = None
    document_format = DocumentFormat(opening="#", closing="", end=None, separator="")

    def encode(self, text):
        return [0] * text.count("#") + super().encode(text)

    def prompt_ids(self, label_text, examples, max_example_tokens):
        return PromptedModel(self).prompt_ids(label_text, examples, max_example_tokens)


class FormattedModels(OpenedModels):
    def language_model(self, manifest):
        return FormattedModel()


class Unread(StoredRecords):
    """A store whose records may not be read yet."""

    def read_for_release(self, *arguments, **options) -> PrivateInputs:
        raise AssertionError("private records were read")


def declared(method, settings):
    return private(
        name="letters",
        columns={"labels": ["label"]},
        public_facts={"labels": {"label": LABELS}, "records": 4000},
        budget={"epsilon": 20.0, "delta": 1e-6, "accepts_ex_post": True},
        public_data="tiny",
        cluster_histogram={"budget_share": 0.05, "clusters_per_label": 2},
        methods=[{"method": method, "settings": settings}],
    )


def sealed(histogram, runner):
    """Puts a histogram into ledger and store, as its own release would; gives its charge."""
    part = runner.plan.histogram
    request = stage_request(runner.plan.spec, part, part.plan.stages[0], release="1", inputs={})
    reservation = runner.ledger.reserve(request, runner.plan.budget, runner.plan.releases)
    digest, place = runner.store.save(reservation.id, histogram.model_dump(mode="json"), None)
    runner.ledger.commit(reservation, artifact_digest=digest, artifact_uri=place)
    return reservation.id


def failure_of(folder, method, settings, histogram):
    spec = declared(method, settings)
    ledger, plan = Ledger(f"sqlite:///{folder / 'ledger.sqlite'}"), plan_dataset(spec)
    runner = Runner(
        plan=plan,
        ledger=ledger,
        store=StoredReleases(folder / "releases"),
        models=FormattedModels(),
        release_name="1",
        records=StoreRecords(spec=spec, store=Unread(folder / "sensitive"), ledger=ledger),
    )
    (planned,) = plan.methods
    assert planned.plan.refusal is None
    reads = Reads(
        public={
            "public_language_model": {"path": "models/tiny"},
            "public_clusters": np.eye(4, 5, dtype=np.float32),
        },
        charges={HISTOGRAM: sealed(histogram, runner)},
    )
    with pytest.raises(PrivacyError) as failed:
        runner.release(plan.graph.nodes[planned.corpus], reads)
    return str(failed.value), {entry.asset for entry in ledger.entries()}


@pytest.mark.parametrize(
    ("method", "settings", "counts", "message"),
    [
        ("mean_uniform", {"max_document_tokens": POSITIONS}, FULL, "within 8192 tokens"),
        ("invisible_ink", {"max_example_tokens": POSITIONS}, FULL, "within 8192 tokens"),
        ("mean_clustered", {}, EMPTY, "half a batch"),
        ("median_clustered", {"matched_epsilon": 20.0}, FULL, "declared labels"),
        ("mean_uniform", {}, FULL, "source.parquet of 'letters' in the sensitive"),
    ],
    ids=["long documents", "long examples", "no batch", "other labels", "lost records"],
)
def test_what_cannot_be_drawn_costs_nothing_and_says_what_is_wrong(
    tmp_path, method, settings, counts, message, own_home
):
    labels = ("a", "c") if message == "declared labels" else LABELS
    histogram = ClusterHistogram(labels=labels, centers=((0, 2), (1, 3)), dp_counts=counts)
    shown, charged = failure_of(tmp_path, method, BATCHES | settings, histogram)
    assert message in shown
    assert shown.startswith("letters/")
    assert "withheld" not in shown
    assert "\n" not in shown
    assert charged == {f"letters/{HISTOGRAM}"}
