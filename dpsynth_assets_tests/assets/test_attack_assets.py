"""Attack assets: real methods on made-up records, bugs noticed, no budget and no private data.

A correct mechanism fails a test with probability below 1e-6 if it copies nothing. Here each of
forty written keys is planted with probability 1e-3 by chance, and four have to be.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import dagster as dg
import numpy as np
import polars as pl
import pytest

from dpsynth_assets.attacks import circumstances
from dpsynth_assets.attacks.audits import latest_results
from dpsynth_assets.attacks.catalogue import COPYING_MODEL, OWN_MODEL, Attack
from dpsynth_assets.attacks.reconstruction import (
    BEGIN,
    END,
    PAD,
    PREFIX,
    CopyingDecoder,
    CopyingModel,
    prefilled,
)
from dpsynth_assets.methods import attack_runs
from dpsynth_assets.methods.planning import plan_dataset
from dpsynth_assets.methods.private_prediction import planted_keys
from dpsynth_assets.methods.private_prediction.aggregates import MeanTokens, MeanUniform
from dpsynth_assets.methods.private_prediction.references import generate_non_private
from dpsynth_assets.methods.stages import StageRelease
from dpsynth_assets.models.prompt_templates import DocumentFormat, PromptedModel
from dpsynth_assets.orchestration.assets import attacks
from dpsynth_assets.orchestration.resources.model_pool import PROCESSOR_POOL
from dpsynth_assets.orchestration.resources.stores import Models
from dpsynth_assets.paths import home
from dpsynth_assets.privacy.guarantees import Cost, Release
from dpsynth_assets.report import attack_record
from dpsynth_assets.tags import MECHANISM, PRIVACY, PUBLIC
from dpsynth_assets_tests.assets.declared_cases import letters, public_values, run_assets

BASE = "tiny"
SETTINGS = {"expected_batch_size": 24, "clip_bound": 2.0, "temperature": 3.0}
EXTRA = {
    "mean_svt": {"svt_noise_scale": 4.0},  # at s = 24 the default would take the whole budget
    "median_clustered": {"matched_epsilon": 3.0},
    "invisible_ink": {"temperature": 1.5},  # public words below it would drown the text
}
METHODS = ("mean_uniform", "mean_svt", "mean_clustered", "invisible_ink", "median_clustered")


class TinyModel(CopyingModel):
    """The copying model behind a document format, as a model of a public base has one."""

    name = "tiny"
    begin_token_id = None
    document_format = DocumentFormat(opening="#", closing="", end=None, separator="")

    def encode(self, text):
        begin = [BEGIN] * text.count("#")
        return begin + super().encode(text.replace(PREFIX, ""))

    def prompt_ids(self, label_text, examples, max_example_tokens):
        return PromptedModel(self).prompt_ids(label_text, examples, max_example_tokens)


class ForgetfulModel(TinyModel):
    """Has never learned to copy."""

    model = CopyingDecoder()
    model.copying = 0.0


class TinyModels(Models):
    def language_model(self, manifest: dict[str, Any]) -> Any:
        return TinyModel()


def make_spec(*methods, **changes):
    fields = {
        "columns": {"labels": ["label"]},
        "public_facts": {"labels": {"label": ["a", "b"]}},
        "budget": {"epsilon": 3.0 * len(methods), "delta": 1e-6, "accepts_ex_post": True},
        "public_data": BASE,
        "cluster_histogram": {"budget_share": 0.02, "clusters_per_label": 2},
        "methods": [
            {"method": method, "settings": SETTINGS | EXTRA.get(method, {})} for method in methods
        ],
    }
    return letters(**(fields | changes))


def planned(*names, **changes):
    spec = make_spec(*names, **changes)
    return spec, plan_dataset(spec)


def silent(_share, _message):
    pass


def key_task(declared):
    """The run on keys of a planned method, with the model that copies."""
    return planted_keys.batches_task(declared.method, declared.target_epsilon, CopyingModel())


def carried_out_by(kind, plan):
    """The plan of the first method, carried out by another one."""
    (first, *_) = plan.methods
    other = kind(first.method.config, first.method.terms)
    return replace(plan, methods=(replace(first, method=other),))


def run_once(kind, model=None):
    """The mean's plan, carried out by another method."""
    plan = carried_out_by(kind, planned("mean_uniform")[1])
    return attack_runs.reconstruct("letters", plan, {"model": model or CopyingModel()}, silent)


@pytest.fixture
def few(monkeypatch):
    """Tests of a few contexts and tokens."""
    monkeypatch.setattr(planted_keys, "CONTEXTS", 24)
    monkeypatch.setattr(planted_keys, "PRIVATE_TOKENS", 25)


# Planted bugs


class Straight(MeanUniform):
    """Planted bug: tokens are drawn from one record's own logits."""

    def release(self, run):
        made = generate_non_private(
            self.config, self.terms, run.private, run.public, 60, run.progress
        )
        value = StageRelease(facts=made.value.facts, rows=made.value.rows)
        cost = Cost(guarantee=self.guarantee, event=run.stage.mechanism.event())
        return Release(value=value, cost=cost)


class Alone(MeanUniform):
    """Planted bug: a batch holds one record, s = 1, and is priced with the declared s."""

    def release(self, run):
        records = len(run.private.records)
        of_one = {"expected_batch_size": 1, "clip_bound": 6.0, "temperature": 1.0}
        batches = {"batches_per_label": records, "max_batches": records}
        single = self.config.model_copy(update=of_one | batches)
        alone = MeanUniform(single, self.terms)
        tokens = MeanTokens(tokens=5, mechanism=alone.mean_mechanism)
        assert run.stage.mechanism.tokens >= 5
        leaking = replace(run.stage, mechanism=tokens)
        made = alone.release(run._replace(stage=leaking))
        cost = Cost(guarantee=self.guarantee, event=run.stage.mechanism.event())
        return Release(value=made.value, cost=cost)


def test_the_real_mechanism_passes_and_copying_without_privacy_would_not():
    (found,) = run_once(MeanUniform)
    assert found.result.passed
    assert found.result.observed == 0.0
    assert found.has_power
    assert found.control.proven_epsilon > found.result.claimed > 0


def test_sampling_from_one_records_logits_is_refuted():
    (found,) = run_once(Straight)
    assert not found.result.passed
    assert found.result.observed > found.result.claimed


def test_batches_of_one_record_are_refuted():
    (found,) = run_once(Alone)
    assert found.overlap.source.share > 10 * found.overlap.held_out.share
    assert not found.result.passed


def test_a_model_that_cannot_copy_has_no_power_and_says_so():
    found = run_once(Straight, prefilled(ForgetfulModel(), None))
    assert found[0].result.passed
    assert not found[0].has_power
    outcome = {check.check_name: check for check in attacks.reconstruction_checks(found)}
    assert outcome[attacks.WITHIN_CLAIM].passed
    assert not outcome[attacks.HAS_POWER].passed
    assert outcome[attacks.HAS_POWER].severity is dg.AssetCheckSeverity.WARN


# Plans of tests


@pytest.mark.parametrize("method", METHODS)
def test_every_method_of_private_prediction_is_tested_with_its_own_settings(method, monkeypatch):
    monkeypatch.setattr(planted_keys, "PRIVATE_TOKENS", 25)
    _, plan = planned(method)
    declared = plan.methods[0]
    task = key_task(declared)
    assert 0 < task.plan.tokens_per_batch <= planted_keys.PRIVATE_TOKENS
    kept = ("clip_bound", "temperature", "expected_batch_size", "logit_slack")
    assert all(
        getattr(task.method.config, name) == getattr(declared.method.config, name) for name in kept
    )
    assert task.plan.parameters["eta"] == declared.plan.parameters["eta"]
    (found,) = attack_runs.reconstruct("letters", plan, {COPYING_MODEL: CopyingModel()}, silent)
    assert found.result.passed, found.result
    assert found.overlap.documents > 0


def test_a_plan_that_fits_is_not_cut(monkeypatch):
    monkeypatch.setattr(planted_keys, "PRIVATE_TOKENS", 10**6)
    _, plan = planned("mean_uniform")
    task = key_task(plan.methods[0])
    assert task.plan.event == plan.methods[0].plan.event


SLOTS = {
    "neighboring_relation": "zero-out",
    "columns": {"labels": ["label"], "id": "id"},
    "public_facts": {"labels": {"label": ["a", "b"]}, "records": 4000, "slots": True},
}


def slots_plan(method, **settings):
    entry = {"method": method, "settings": SETTINGS | {"batching": "slots"} | settings}
    return planned(methods=[entry], budget={"epsilon": 3.0, "delta": 1e-6}, **SLOTS)[1]


def test_slots_are_tested_as_slots_with_null_records_in_their_places(few):
    plan = slots_plan("mean_uniform", examples_per_context=2)
    task = key_task(plan.methods[0])
    assert task.method.config.batching == "slots"
    assert task.method.terms.public_records == len(task.plant().places) == 24 * 2
    (found,) = attack_runs.reconstruct("letters", plan, {"model": CopyingModel()}, silent)
    assert found.result.passed, found.result
    assert found.overlap.documents > 0
    assert found.has_power


def test_copying_from_slots_is_refuted():
    plan = slots_plan("mean_uniform")
    leaking = carried_out_by(Straight, plan)
    (found,) = attack_runs.reconstruct("letters", leaking, {"model": CopyingModel()}, silent)
    assert not found.result.passed


def test_methods_that_refuse_are_not_tested():
    spec, plan = planned("mean_uniform", budget={"epsilon": 0.01, "delta": 1e-6})
    assert plan.methods[0].plan.refusal is not None
    assert attack_runs.attacked(plan, Attack.RECONSTRUCTION) == ()
    assert not list(attacks.attack_definitions(spec, plan).assets or ())


# Prompts


TURNS = {
    "private": "Keys of {label}: {examples}~",
    "example": "#{example}.",
    "separator": " ",
    "response_start": "Sure:",
    "text_start": "#",
    "text_end": ".",
    "end": ".",
}


class TurnsTokenizer:
    """Tokens of a frame: `#` begins a text, `.` ends it, `~` closes the turn; digits are keys'."""

    eos_token_id, all_special_ids, chat_template = END, [BEGIN, END, PAD], None

    def __call__(self, text, add_special_tokens):
        special = {"#": BEGIN, ".": END, "~": PAD}
        assert not add_special_tokens
        return {"input_ids": [special[letter] for letter in text if letter in special]}


class TurnsModel(TinyModel):
    """The copying model, which reads and writes in turns."""

    tokenizer = TurnsTokenizer()


def test_keys_are_planted_in_the_declared_prompts(few):
    _, plan = planned("mean_uniform", prompt=TURNS)
    model = prefilled(TurnsModel(), plan.terms.prompts)
    key = TinyModel().encode("01234")
    prompt = model.prompt_ids("keys", ["01234", "01234"], 5)
    assert prompt == [BEGIN, *key, END, BEGIN, *key, END, PAD, BEGIN]
    (found,) = attack_runs.reconstruct("letters", plan, {"model": model}, silent)
    assert found.result.passed, found.result
    assert found.overlap.with_key > 0  # a text is read from its key on
    assert found.has_power  # and what copies would be seen


class TurnsModels(Models):
    def language_model(self, manifest: dict[str, Any]) -> Any:
        return TurnsModel()


def test_the_asset_tests_the_model_with_its_declared_prompts(monkeypatch, own_home):
    subjects = {}
    monkeypatch.setattr(attacks, "reconstruct", lambda *given: subjects.update(given[2]) or [])
    run_attacks(*planned("mean_uniform", prompt=TURNS), models=TurnsModels())
    own = subjects[OWN_MODEL]
    assert own.prompt_ids("keys", [], 1)[-2:] == [PAD, BEGIN]


# Assets


def public_assets(texts, path="tiny"):
    """What a public base gives, in place of a trained one."""
    generator = np.random.default_rng(0)
    embeddings = generator.normal(size=(len(texts), 4)).astype(np.float32)
    embeddings /= np.linalg.norm(embeddings, axis=1, keepdims=True)
    return public_values(
        BASE,
        public_language_model={"path": path, "dtype": "float32", "device": "cpu"},
        public_corpus=pl.DataFrame({"text": texts, "label": ["a", "other"] * (len(texts) // 2)}),
        public_embeddings=embeddings,
        public_clusters=embeddings[:2],
    )


def run_attacks(spec, plan, texts=("01234", "56789"), models=None):
    assets = attacks.attack_definitions(spec, plan).assets
    return run_assets([*public_assets(texts), *assets], models=models or TinyModels())


TEXTS = [f"{number * 7919 % 100_000:05d}" for number in range(400)]


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    folder = tmp_path_factory.mktemp("attacks")
    patch = pytest.MonkeyPatch()
    patch.setenv("DPSYNTH_HOME", str(folder))
    yield run_attacks(*planned("mean_uniform", "median_clustered"), TEXTS), folder
    patch.undo()


def metadata(result, artifact):
    key = dg.AssetKey(["letters", "audit", artifact])
    (event,) = [e for e in result.get_asset_materialization_events() if e.asset_key == key]
    return {name: value.value for name, value in event.materialization.metadata.items()}


def test_the_assets_run_and_their_checks_pass(ran):
    result, _ = ran
    checks = {check.check_name: check.passed for check in result.get_asset_check_evaluations()}
    assert checks == {
        attacks.WITHIN_CLAIM: True,
        attacks.NO_COPYING: True,
        attacks.HAS_POWER: True,
        attacks.NEVER_EXCEEDED: True,
    }


def test_results_are_recorded_with_the_settings_of_their_method_and_model(ran):
    _, plan = planned("mean_uniform", "median_clustered")
    results = latest_results(attack_record.attacks_file())
    by_method = {
        method.folder: attack_record.settings_of_method(method, plan.budget, "tiny")
        for method in plan.methods
    }
    assert len(set(by_method.values())) == 2
    assert {result.name: result.settings for result in results} == {
        f"letters/{method.folder}/{attack}": by_method[method.folder]
        for method in plan.methods
        for attack in attack_record.attacks_of(type(method.method))
    }
    assert len(results) == 6


def test_tables_are_metadata(ran):
    result, _ = ran
    reconstruction = metadata(result, attacks.RECONSTRUCTION)
    assert "mean_uniform | copying model" in reconstruction["dpsynth/reconstruction"]
    assert reconstruction["dpsynth/epsilon_proven"] == 0.0
    median = metadata(result, attacks.MEDIAN)
    # Copying contexts agree on no token, so that no neighbour moves their median.
    assert median["dpsynth/share_attained"] == 0
    assert median["dpsynth/largest_excess"] <= 0
    batches = median["dpsynth/median_audit"].splitlines()[2:]
    assert 1 <= len(batches) <= planted_keys.CONTEXTS // SETTINGS["expected_batch_size"]
    assert all(4 < int(line.split("|")[2]) < 60 for line in batches), "of the declared size"


def test_attacks_charge_nothing_and_touch_no_private_store(ran):
    _, folder = ran
    assert not (folder / "ledger").exists()
    assert not (folder / "sensitive").exists()
    assert not home().audits.exists()  # the mechanism audits' own file


def test_attacks_are_public_and_run_on_processors():
    """So they are made of public assets alone: `lineage` refuses others."""
    made = attacks.attack_definitions(*planned("mean_uniform", "median_clustered")).assets
    assert [each.key.path[-1] for each in made] == [attacks.RECONSTRUCTION, attacks.MEDIAN]
    for asset in made:
        (spec,) = asset.specs
        assert spec.tags[PRIVACY] == PUBLIC
        assert MECHANISM not in spec.tags
        assert asset.op.pool == PROCESSOR_POOL


def test_every_median_of_a_dataset_is_audited():
    entry = {"method": "median_clustered", "settings": SETTINGS | EXTRA["median_clustered"]}
    methods = [{**entry, "name": name} for name in ("one", "two")]
    _, plan = planned(methods=methods, budget=make_spec("mean_uniform").budget)
    audited = attack_runs.attacked(plan, Attack.MEDIAN_AUDIT)
    assert [each.folder for each in audited] == ["one", "two"]
    audit = dg.AssetKey(["letters", "audit", attacks.MEDIAN])
    assert all(audit in attacks.attack_keys("letters", method) for method in plan.methods)


def test_public_documents_of_foreign_labels_are_dealt_out():
    documents = pl.DataFrame({"text": list("wxyz"), "label": ["b", "q", "r", None]})
    records = attack_runs.public_records(documents, ["a", "b"])
    assert records["label"].to_list() == ["b", "b", "a", "b"]
    assert records["record_id"].n_unique() == 4
    assert records["text"].to_list() == list("wxyz")


def test_an_audit_without_any_context_says_what_to_do():
    from dpsynth_assets.attacks.median_audit import MedianAudit
    from dpsynth_assets.privacy.median import MedianTokenMechanism

    mechanism = MedianTokenMechanism(clip_bound=1.0, temperature=1.0, relation="add-remove")
    with pytest.raises(ValueError, match="larger public base"):
        attack_runs.median_results("letters/median", MedianAudit(mechanism), 0.0)


# What need not run again


@pytest.fixture
def own_home(tmp_path, monkeypatch):
    """One that is there: results are kept in no other."""
    monkeypatch.setenv("DPSYNTH_HOME", str(tmp_path))
    return tmp_path


def attack_of(method="mean_uniform", **changes):
    """Runs the reconstruction test of one method, and gives its metadata."""
    return metadata(run_attacks(*planned(method, **changes)), attacks.RECONSTRUCTION)


@pytest.fixture
def runs(few, monkeypatch):
    """Counts how often keys are planted."""
    counted = []

    def watched(*given):
        counted.append(given)
        return attack_runs.reconstruct(*given)

    monkeypatch.setattr(attacks, "reconstruct", watched)
    return counted


def test_an_unchanged_attack_is_not_run_again(own_home, runs):
    first = attack_of()
    attack_record.attacks_file().unlink()
    second = attack_of()
    assert (len(runs), first) == (1, second)
    assert len(latest_results(attack_record.attacks_file())) == 2, "labels print them still"


def test_a_changed_attack_is_run_again(own_home, runs, monkeypatch):
    attack_of()
    warmer = SETTINGS | {"temperature": 3.5}
    attack_of(methods=[{"method": "mean_uniform", "settings": warmer}])
    with monkeypatch.context() as another:
        another.setitem(globals(), "public_assets", partial(public_assets, path="other"))
        attack_of()
    monkeypatch.setattr(circumstances, "circumstances", lambda: "a newer library")
    attack_of()
    assert len(runs) == 4


def test_a_refuted_claim_is_looked_at_each_time(own_home, monkeypatch):
    counted = []

    def leaking(name, plan, models, report):
        counted.append(name)
        bad = carried_out_by(Straight, plan)
        return attack_runs.reconstruct(name, bad, {"model": CopyingModel()}, report)

    monkeypatch.setattr(attacks, "reconstruct", leaking)
    for _ in range(2):
        attack_of()
    assert len(counted) == 2
    assert not list(attack_record.kept_attacks_folder().glob("*"))


def test_an_unchanged_audit_of_the_median_is_not_run_again(own_home, runs, monkeypatch):
    counted = []
    audited = attacks._audited
    monkeypatch.setattr(attacks, "_audited", lambda *given: counted.append(1) or audited(*given))

    def table(texts):
        result = run_attacks(*planned("median_clustered"), texts)
        return metadata(result, attacks.MEDIAN)["dpsynth/median_audit"]

    assert table(TEXTS) == table(TEXTS)
    assert len(counted) == 1
    table(TEXTS[::-1])
    assert len(counted) == 2, "other public documents are another audit"
