"""Minutes follow from declared facts and one trial, which is kept with all that it depends on."""

import json

import pytest

from dpsynth_assets.advice import minutes as minutes_module, speed as module
from dpsynth_assets.advice.minutes import expected_minutes
from dpsynth_assets.advice.speed import SpeedUnknownError, machine_speed
from dpsynth_assets.datasets import PublicDataSpec
from dpsynth_assets.methods.planning import plan_dataset
from dpsynth_assets.methods.work import PublicSizes, Work
from dpsynth_assets.models.prompt_templates import PromptTemplates
from dpsynth_assets.paths import home
from dpsynth_assets_tests.advice.conftest import speed_of
from dpsynth_assets_tests.declared import private

BASE = PublicDataSpec(name="words", domain="Letters", language_model={"kind": "smollm2"})
AUG_PE = {"method": "aug_pe", "settings": {"population": 40, "iterations": 2, "rows": 50}}

pytestmark = pytest.mark.usefixtures("own_home", "known_speed")


def cohort(*methods, records=4000, **further):
    own = {"public_facts": {"records": records}, "methods": list(methods or (AUG_PE,))}
    return private(public_data="words", **own, **further)


def minutes(spec, base=BASE):
    return expected_minutes(spec, plan_dataset(spec, base), base)


def test_every_method_has_minutes_and_the_run_has_those_of_all_and_more(monkeypatch):
    both = minutes(cohort(AUG_PE, {"method": "epsvec"}))
    assert set(both.releases) == {"aug_pe", "epsvec"}
    assert both.whole > sum(both.releases.values())
    alone = minutes(cohort(AUG_PE))
    assert alone.releases["aug_pe"] == both.releases["aug_pe"]
    assert (alone.unknown, alone.whole < both.whole) == ("", True)
    monkeypatch.setattr(minutes_module, "machine_speed", lambda _base: speed_of(2.0))
    assert minutes(cohort(AUG_PE)).whole == pytest.approx(2 * alone.whole)


def test_encoders_are_counted_with_their_runs_and_one_that_is_not_here_as_bert():
    without, once, thrice, absent = (
        minutes(cohort(evaluation={"rows": 50, "encoder": encoder})).whole
        for encoder in (None, {"runs": 1}, {"runs": 3}, {"runs": 1, "model": "owner/absent"})
    )
    assert thrice - without == pytest.approx(3 * (once - without))
    assert once - without < absent - without


def test_no_record_is_counted():
    """The file that holds the records is nowhere: only their declared number is known."""
    declared, more = minutes(cohort(records=1000)), minutes(cohort(records=100_000))
    assert more.whole > declared.whole
    assert minutes(cohort(records=None)).whole > 0


@pytest.mark.parametrize(
    ("engine", "why"),
    [
        ({"kind": "openai", "model": "m", "base_url": "https://host/v1"}, "of kind openai"),
        ({"kind": "vllm", "model": "m"}, "of kind vllm"),
        ({"model": "owner/judge"}, "owner/judge, whose speed was not measured"),
    ],
)
def test_what_runs_elsewhere_is_not_guessed(engine, why):
    message = {"role": "user", "content": "Write a letter."}
    prompt = {"message_template": [message], "replacement_rules": []}
    settings = {"api": "engine", "random_prompt": prompt, "variation_prompt": prompt}
    asked = {"method": "aug_pe", "settings": {**AUG_PE["settings"], **settings}}
    found = minutes(cohort(asked, engine=engine))
    assert found.releases == {"aug_pe": None}
    assert found.whole is None
    assert why in found.unknown


@pytest.mark.parametrize(
    ("model", "why"),
    [
        ({"kind": "pretrained", "model": "nobody/nothing"}, "is not on this machine yet"),
        ({"kind": "smollm2", "decoder": "vllm"}, "decoded by vLLM"),
    ],
)
def test_a_model_that_is_not_here_says_so(model, why, monkeypatch):
    monkeypatch.setattr(minutes_module, "machine_speed", machine_speed)
    base = PublicDataSpec.model_validate({"name": "words", "language_model": model})
    found = minutes(cohort(), base)
    assert why in found.unknown
    assert (found.releases, found.whole) == ({"aug_pe": None}, None)


# The trial is kept


@pytest.fixture
def trials(monkeypatch, tmp_path):
    """A machine whose trials are counted, and what they depend on can be changed."""
    made, parts = [], {"machine": ["processor", "avx2"], "files": [["weights", 1, 2]]}
    monkeypatch.setattr(module, "packaged_model", lambda: tmp_path)
    monkeypatch.setattr(module, "language_model_manifest", lambda _: {"path": "weights"})
    monkeypatch.setattr(module, "files_behind", lambda _: parts["files"])
    monkeypatch.setattr(module, "machine", lambda: parts["machine"])

    def tried(_base, _manifest):
        made.append(dict(parts))
        return dict(vars(speed_of(float(len(made)))))

    monkeypatch.setattr(module, "_tried", tried)
    return made, parts


@pytest.mark.parametrize(
    ("part", "other"),
    [("machine", ["processor", "avx512_vnni"]), ("files", [["weights", 1, 3]])],
)
def test_another_machine_or_model_has_a_trial_of_its_own(part, other, trials):
    made, parts = trials
    first, was = machine_speed(BASE), parts[part]
    assert machine_speed(BASE) == first == speed_of(1.0)
    parts[part] = other
    assert machine_speed(BASE) != first
    parts[part] = was
    assert machine_speed(BASE) == first
    assert len(made) == 2


@pytest.mark.parametrize("broken", ["", "{", "[]", json.dumps({"key": 1})])
def test_a_broken_file_is_made_anew(broken, trials):
    made, _ = trials
    machine_speed(BASE)
    (file,) = home().plans.glob("*.json")
    file.write_text(broken)
    assert machine_speed(BASE) == speed_of(2.0)
    assert machine_speed(BASE) == speed_of(2.0)
    assert len(made) == 2
    assert [each.name for each in home().plans.iterdir()] == [file.name]


def test_a_reason_is_kept_as_well(trials, monkeypatch):
    del trials
    monkeypatch.setattr(module, "_tried", lambda *_: "the language model runs on a GPU")
    with pytest.raises(SpeedUnknownError, match="runs on a GPU"):
        machine_speed(BASE)
    monkeypatch.setattr(module, "_tried", lambda *_: pytest.fail("was tried again"))
    with pytest.raises(SpeedUnknownError, match="runs on a GPU"):
        machine_speed(BASE)


# Lengths


def test_frames_are_those_of_the_templates():
    templates = PromptTemplates(
        private="Letters\n{examples}",
        example="{label}: {example}",
        public="Of {label}:",
        response_start=" {label}:",
    )
    sizes = PublicSizes(
        text_tokens=7,
        documents=1,
        records=1,
        label_texts=("a", "long label"),
        prompts=templates,
        tokens_of=lambda words: len(words.split()),
    )
    assert sizes.frame(0) == (3 + 5) / 2
    assert sizes.prompt(2, 5) == sizes.frame(2) + 10
    assert sizes.shared_start(1) == (2 + 3) / 2


def test_equal_prompts_are_read_once_a_pass():
    sizes = PublicSizes(
        text_tokens=10, documents=1, records=1, label_texts=("",), prompts=None, tokens_of=len
    )
    once = sizes.writing(128, 20, 30, rows=64, different=4)
    assert once == Work(read=(2 + 4 - 1) * 20, steps=60, written=1280)
    assert sizes.writing(128, 20, 30, rows=64).read == 128 * 20
    assert sizes.writing(0, 20, 30, rows=64) == Work()
