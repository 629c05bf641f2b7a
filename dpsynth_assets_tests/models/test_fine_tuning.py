"""Laws of DP-Adam: its steps, what it saves and tells, and that a killed run goes on."""

import json
import math
from functools import partial

import numpy as np
import pytest
import torch

from dpsynth_assets.models.fine_tuning.adapters import add_adapters, merge_adapters
from dpsynth_assets.models.fine_tuning.sources import (
    CausalLoss,
    FineTuningSettings,
    TokenExample,
    _loss_of,
    micro_batches,
    part_size,
    refuse_untrainable,
)
from dpsynth_assets.models.fine_tuning.training import (
    LINES,
    LOSSES,
    fine_tune_privately,
    public_steps,
)
from dpsynth_assets.models.language_model import IGNORED, causal_rows, mean_token_losses, padded
from dpsynth_assets.privacy import dp_sgd
from dpsynth_assets_tests.checkpoint_folders import CheckpointFolders
from dpsynth_assets_tests.privacy import dp_sgd_cases
from dpsynth_assets_tests.privacy.small_models import small

CAUSAL = CausalLoss(pad_token_id=1, start_token_id=2)


class SequenceLoss:
    """Of an encoder-decoder: the mean over a target's tokens."""

    def __call__(self, model, batch):
        inputs = padded([each.inputs for each in batch], 1)
        shifted = padded([[2, *each.targets[:-1]] for each in batch], 1)
        mask = padded([[1] * len(each.inputs) for each in batch], 0)
        logits = model(input_ids=inputs, attention_mask=mask, decoder_input_ids=shifted).logits
        return mean_token_losses(logits, padded([each.targets for each in batch], IGNORED))

    def length(self, example):
        return len(example.targets) + len(example.inputs) // 2


SEQUENCE = SequenceLoss()


bart = partial(small, "Bart", decoder_layers=1, scale_embedding=False)
llama = partial(small, "Llama", num_hidden_layers=1, num_key_value_heads=2, attention_bias=False)
cohere = partial(small, "Cohere", num_hidden_layers=1, logit_scale=1.0)
"""A causal model whose norms book-keeping does not know."""


def examples(count=24, seed=3):
    """Sequences that count upwards: learnable, of different lengths."""
    generator = np.random.default_rng(seed)
    starts, lengths = generator.integers(5, 30, count), generator.integers(2, 9, count)
    return [
        TokenExample([int(s)], list(range(s + 1, s + 1 + n)))
        for s, n in zip(starts, lengths, strict=True)
    ]


mechanism = partial(
    dp_sgd_cases.mechanism,
    l2_bound=1.0,
    noise_multiplier=0.5,
    sampling_probability=0.5,
    expected_batch_size=12.0,
    steps=4,
)


def settings(**changes):
    return FineTuningSettings(**{"learning_rate": 1e-2, "micro_batch": 5, **changes})


def train(model=None, run=None, made=None, folders=None, *, data=None, loss=SEQUENCE, **told):
    """Facts of a run of a few steps."""
    own = mechanism() if run is None else run
    data, made = examples() if data is None else data, made or settings()
    return fine_tune_privately(model or bart(), data, loss, own, made, folders, **told)


def weights(model):
    return torch.cat([each.detach().flatten() for each in model.parameters()])


@pytest.fixture
def noiseless(monkeypatch):
    monkeypatch.setattr(dp_sgd, "gaussian_like", lambda like, _: torch.zeros_like(like))


@pytest.fixture
def folders(tmp_path):
    return CheckpointFolders(tmp_path / "run")


# Training


@pytest.mark.parametrize(
    ("make", "loss"),
    [(bart, SEQUENCE), (llama, CAUSAL), (cohere, CAUSAL)],
    ids=["sequence to sequence", "causal", "causal, with Opacus"],
)
def test_without_noise_and_clipping_private_training_is_plain_training(noiseless, make, loss):
    # Every record in every batch, C beyond every norm: both take the same steps of AdamW.
    private, plain, data = make(), make(), examples()
    run = mechanism(sampling_probability=1.0, expected_batch_size=len(data), l2_bound=1e4, steps=3)
    train(private, run, settings(learning_rate=1e-3), loss=loss)
    optimizer = torch.optim.AdamW(plain.parameters(), weight_decay=0.1)
    for step in range(3):
        optimizer.param_groups[0]["lr"] = settings(learning_rate=1e-3).rate(step, 3)
        optimizer.zero_grad()
        loss(plain.eval(), data).mean().backward()
        optimizer.step()
    moved = weights(plain) - weights(make())
    difference = (weights(private) - weights(plain)).norm() / moved.norm()
    assert moved.norm() > 0.05
    assert difference < 0.02


@pytest.mark.parametrize(("batch", "threads"), [(0, 2), (1, 2), (64, 1), (65, 2), (200, 3)])
def test_parts_come_in_rounds_of_one_a_thread_and_of_about_one_size(batch, threads):
    size = part_size(batch, 32, threads)
    parts = list(micro_batches(examples(batch), np.arange(batch), SEQUENCE, size))
    assert sum(map(len, parts)) == batch
    assert size * threads <= 32 + threads
    assert len(parts) <= threads * -(-batch // 32)


def test_a_run_says_which_layers_opacus_works_on():
    told = []
    train(cohere(), loss=CAUSAL, progress=lambda *line: told.append(line))
    name = "model.layers.0.input_layernorm (CohereLayerNorm)"
    line = f"per-record gradients of 2 layers, the first of which is {name}, computed by Opacus"
    assert told[0] == (0.0, line)
    assert [each for each in told if "Opacus" in each[1]] == told[:1]
    told.clear()
    train(progress=lambda *line: told.append(line))
    assert told
    assert not [each for each in told if "Opacus" in each[1]]


def test_empty_batches_take_a_step_of_noise():
    model = bart()
    assert train(model, mechanism(steps=2, sampling_probability=1e-12)).steps == 2
    assert (weights(model) != weights(bart())).float().mean() > 0.99


def test_adapters_train_alone_and_fold_into_an_ordinary_model():
    model, data = bart(), examples()
    start = {name: each.detach().clone() for name, each in model.named_parameters()}
    adapted = add_adapters(model, 2)
    assert train(adapted).parameters < weights(bart()).numel() / 3
    trained = dict(adapted.named_parameters())
    for name, each in start.items():
        found = [value for key, value in trained.items() if key.endswith(_base_name(name))]
        assert any(torch.equal(each, value) for value in found)
    with torch.no_grad():
        expected = SEQUENCE(adapted, data)
        folded = merge_adapters(adapted)
        torch.testing.assert_close(SEQUENCE(folded, data), expected, rtol=1e-4, atol=1e-5)
    assert type(folded).__name__ == "BartForConditionalGeneration"


def _base_name(name):
    *path, leaf = name.split(".")
    return f"{path[-1]}.base_layer.{leaf}" if path[-1].endswith(("proj", "fc1", "fc2")) else name


class Watched(SequenceLoss):
    """Notes how the model stands in each pass, and how many records share it."""

    def __init__(self):
        self.modes, self.sizes = [], []

    def __call__(self, model, batch):
        self.modes.append(model.training)
        self.sizes.append(len(batch))
        return super().__call__(model, batch)


def shapes_of_parts(run):
    """How many records share each pass of one step of a private run, in which dropout sleeps."""
    model, watched = bart().train(), Watched()
    train(model, run, data=examples(9), loss=watched)
    assert not any([*watched.modes, model.training])
    return watched.sizes


def test_records_share_passes_only_up_to_the_number_that_is_kept_back_for(noiseless):
    whole = {"steps": 1, "sampling_probability": 1.0}
    assert shapes_of_parts(mechanism(**whole)) == [1] * 9
    assert shapes_of_parts(mechanism(**whole, most_in_company=8)) == [1] * 9
    assert max(shapes_of_parts(mechanism(**whole, most_in_company=9))) > 1


def test_passes_in_bfloat16_need_a_declared_slack_before_a_batch_is_drawn(noiseless):
    half, run = bart().to(torch.bfloat16), mechanism(most_in_company=9)
    with pytest.raises(ValueError, match=r"declared gradient_slack .* in bfloat16"):
        train(half, run, data=examples(9))
    assert run.released_steps == 0
    with pytest.raises(ValueError, match=r"declared gradient_slack .* in bfloat16"):
        refuse_untrainable(half, examples(2), SEQUENCE, 1.0, shared_passes=True)


def test_positions_that_follow_the_longest_record_are_refused_in_company():
    model = bart()
    model.config.rope_parameters = {"rope_type": "longrope"}
    with pytest.raises(ValueError, match="do not depend on the longest record"):
        refuse_untrainable(model, examples(2), SEQUENCE, 1.0, shared_passes=True)
    refuse_untrainable(model, examples(2), SEQUENCE, 1.0)


# Rates and batches


def test_the_rate_warms_up_then_falls_to_zero_in_straight_lines():
    made = FineTuningSettings(learning_rate=1.0, warmup_steps=100)
    rates = [made.rate(step, 2000) for step in range(2000)]
    assert max(rates) == rates[100] == 1.0
    assert np.ptp(np.diff(rates[:100])) < 1e-12
    assert np.ptp(np.diff(rates[100:])) < 1e-12
    assert 0 < rates[-1] <= 1 / 1900
    assert all(0 < made.rate(step, 7) <= 1.0 for step in range(7))


def test_a_batch_is_cut_into_parts_of_like_length_without_loss():
    data = examples(23)
    batch = np.array([1, 4, 5, 9, 16, 20, 22])
    parts = list(micro_batches(data, batch, SEQUENCE, 3))
    assert [len(part) for part in parts] == [3, 3, 1]
    lengths = [SEQUENCE.length(each) for part in parts for each in part]
    assert lengths == sorted(lengths, reverse=True)
    assert {id(each) for part in parts for each in part} == {id(data[index]) for index in batch}
    rows = [len(part) * SEQUENCE.length(part[0]) for part in parts]
    assert [_loss_of(part, SEQUENCE).rows for part in parts] == rows
    assert list(micro_batches(data, batch[:0], SEQUENCE, 3)) == []


def test_a_mean_is_taken_over_an_examples_own_tokens():
    logits, labels = torch.randn(3, 4, 7), torch.randint(0, 7, (3, 4))
    labels[0, 2:], labels[1] = -100, -100
    found = mean_token_losses(logits, labels)
    own = torch.nn.functional.cross_entropy(logits[0, :2], labels[0, :2])
    assert float(found[0]) == pytest.approx(float(own))
    assert found[1] == 0.0


@pytest.mark.parametrize(("make", "loss"), [(bart, SEQUENCE), (llama, CAUSAL)])
def test_padding_does_not_change_a_loss(make, loss):
    model, data = make().eval(), examples(6)
    with torch.no_grad():
        together = loss(model, data)
        alone = torch.cat([loss(model, [each]) for each in data])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)


def test_no_pass_is_of_fewer_than_four_tokens():
    # One to three rows are multiplied by code that rounds more than `GRADIENT_SLACK` covers.
    inputs, labels = causal_rows([[2]], [[7]], 0)
    assert {each.shape for each in (*inputs.values(), labels)} == {(1, 4)}


def test_a_causal_loss_learns_targets_and_not_the_prompt():
    model = llama().eval()
    with torch.no_grad():
        whole = CAUSAL(model, [TokenExample([], [7, 8, 9])])
        rest = CAUSAL(model, [TokenExample([2, 7], [8, 9])])
        first = CAUSAL(model, [TokenExample([2], [7])])
    assert float(3 * whole) == pytest.approx(float(first + 2 * rest), rel=1e-4)


def test_examples_do_not_show_their_tokens():
    assert "77" not in repr(TokenExample([77], [78]))


# Checkpoints


def test_a_killed_run_goes_on_at_its_last_checkpoint_with_equal_steps(noiseless, tmp_path):
    every = {"sampling_probability": 1.0, "expected_batch_size": len(examples()), "steps": 7}
    made = settings(checkpoint_seconds=0.0)
    with pytest.raises(KeyboardInterrupt):
        train(None, mechanism(**every), made, CheckpointFolders(tmp_path / "run", dies_at=3))
    resumed, whole, run = bart(), bart(), mechanism(**every)
    assert train(resumed, run, made, CheckpointFolders(tmp_path / "run")).resumed_at == 2
    assert run.released_steps == 7
    train(whole, mechanism(**every), made)
    torch.testing.assert_close(weights(resumed), weights(whole), rtol=1e-5, atol=1e-6)


def test_a_finished_run_starts_no_step_again(folders):
    first, again = bart(), bart()
    train(first, folders=folders)
    facts = train(again, folders=folders)
    assert facts.resumed_at == facts.steps == 4
    assert torch.equal(weights(first), weights(again))


@pytest.mark.parametrize(
    "changed",
    [
        {"noise_multiplier": 0.4},
        {"steps": 9},
        {"l2_bound": 2.0},
        {"expected_batch_size": 13.0},
        {"sampling_probability": 0.4},
    ],
    ids=lambda each: next(iter(each)),
)
def test_a_checkpoint_of_another_charge_is_refused(folders, changed):
    train(folders=folders)
    with pytest.raises(ValueError, match="Expected a checkpoint of this run"):
        train(run=mechanism(**changed), folders=folders)


def test_a_run_may_save_at_other_times_but_not_learn_otherwise(folders):
    train(folders=folders)
    train(made=settings(checkpoint_seconds=1.0, micro_batch=3), folders=folders)
    with pytest.raises(ValueError, match="Expected a checkpoint of this run"):
        train(made=settings(learning_rate=1e-3), folders=folders)


def test_a_checkpoint_is_plain_numbers_and_json(folders):
    train(folders=folders)
    names = sorted(file.name for file in folders.saved.iterdir())
    assert names == ["state.json", "tensors.safetensors"]
    state = json.loads((folders.saved / "state.json").read_text())
    assert state["step"] == 4
    assert state["charge"]["event"]["steps"] == 4
    assert folders.saved.stat().st_mode & 0o077 == 0


# What is told


@pytest.mark.parametrize("steps", [1, 2, 4, 5, 6, 19, 20, 21, 25, 2000, 12_345])
def test_public_steps_are_few_even_and_end_with_the_last(steps):
    for times in (LOSSES, LINES):
        found = sorted(public_steps(steps, times))
        gaps = np.diff([0, *found])
        assert found[-1] == steps
        assert len(found) <= times
        assert set(gaps[:-1]) <= {gaps[0]}
        assert gaps[-1] <= gaps[0]


def told_by(tmp_path, count, chosen, steps=11):
    """Steps of the facts, and all that is told but the values of losses."""
    told = []
    facts = train(
        run=mechanism(steps=steps),
        made=settings(micro_batch=20, **chosen),
        folders=CheckpointFolders(tmp_path / f"{count}-{len(chosen)}-{sum(chosen.values())}"),
        data=examples(count),
        public_evaluation=lambda _model: 1.5,
        progress=lambda *line: told.append(line),
    )
    return facts.public_losses, told


def test_what_is_told_follows_from_the_number_of_steps_alone(tmp_path):
    expected = told_by(tmp_path, 8, {"checkpoint_seconds": 1e9})
    for count, chosen in (
        (8, {"checkpoint_seconds": 1e-9}),  # another clock
        (1, {"checkpoint_seconds": 1e9}),  # another number of records
        (20, {"checkpoint_seconds": 0.0}),
    ):
        assert told_by(tmp_path, count, chosen) == expected
    losses, lines = expected
    assert losses == tuple((step, 1.5) for step in (3, 6, 9, 11))
    assert [share for share, _ in lines] == [step / 11 for step in range(1, 12)]
    assert lines[1][1] == "step 2 of 11"
    assert lines[2][1] == "step 3 of 11, public loss 1.500"
    assert lines[3][1] == "step 4 of 11 (at step 3: public loss 1.500)"


def test_a_loss_is_measured_then_saved_with_its_step_and_then_told(tmp_path):
    events = []

    class Folders(CheckpointFolders):
        def save(self, scratch):
            state = json.loads((scratch / "state.json").read_text())
            events.append((state["step"], len(state["public_losses"])))
            super().save(scratch)

    def evaluate(_model):
        events.append("measured")
        return 1.5

    train(
        run=mechanism(steps=8),
        made=settings(checkpoint_seconds=0.0, micro_batch=20),
        folders=Folders(tmp_path / "run"),
        public_evaluation=evaluate,
        progress=lambda _, message: events.append("told") if "8, public" in message else None,
    )
    rounds = [[(2 * n + 1, n), "measured", (2 * n + 2, n + 1), "told"] for n in range(4)]
    assert events == [event for each in rounds for event in each]


def test_a_killed_run_shows_no_loss_that_is_drawn_again(tmp_path):
    told = []

    def start(folders):
        return train(
            run=mechanism(steps=11),
            made=settings(micro_batch=20),
            folders=folders,
            public_evaluation=lambda model: float(weights(model).double().sum()),
            progress=lambda _, message: told.append(message),
        )

    with pytest.raises(KeyboardInterrupt):
        start(CheckpointFolders(tmp_path / "run", dies_at=2))
    assert told[-1].startswith("step 5 of 11 (at step 3: public loss")  # its sixth was not saved
    facts = start(CheckpointFolders(tmp_path / "run"))
    assert facts.resumed_at == 3
    assert [step for step, _ in facts.public_losses] == [3, 6, 9, 11]
    shown = {line.split(" of ")[0]: line.split("loss ")[1] for line in told if "11, p" in line}
    assert shown == {f"step {step}": f"{loss:.3f}" for step, loss in facts.public_losses}


def test_without_a_checkpoint_nothing_is_told_before_the_end():
    told = []
    train(made=settings(checkpoint_seconds=0.0), progress=lambda *line: told.append(line))
    assert told == [(1.0, "step 4 of 4")]


# Models that cannot be trained


def test_a_trial_leaves_the_model_as_it_was():
    model = bart()
    refuse_untrainable(model, examples(2), SEQUENCE, 1.0)
    assert torch.equal(weights(model), weights(bart()))
    assert all(each.grad is None for each in model.parameters())


def test_layers_of_opacus_that_see_how_far_mates_pad_a_record_fail_the_trial_in_company():
    class Circular(torch.nn.Conv1d):
        def forward(self, rows):
            return super().forward(rows.mT).mT

    model = cohere()
    model.model.norm = Circular(16, 16, 3, padding=1, padding_mode="circular")
    refuse_untrainable(model, examples(4), CAUSAL, 1.0)
    with pytest.raises(ValueError, match=r"a layer mixes.*exact_sums") as refusal:
        refuse_untrainable(model, examples(4), CAUSAL, 1.0, shared_passes=True)
    assert "\n" not in str(refusal.value)
    refuse_untrainable(cohere(), examples(4), CAUSAL, 1.0, shared_passes=True)


def test_weights_that_are_no_numbers_fail_the_trial():
    model = bart()
    with torch.no_grad():
        model.lm_head.weight[3] = math.nan
    with pytest.raises(ValueError, match="finite losses"):
        refuse_untrainable(model, examples(2), SEQUENCE, 1.0)


class Centred(torch.nn.Module):
    """A layer without parameters that takes the examples of a pass together."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, values):
        values = self.layer(values)
        return values - values.mean(0, keepdim=True)


@pytest.mark.parametrize("slack", [None, 2.0**-12], ids=["of float32", "declared"])
def test_a_layer_that_mixes_examples_fails_the_trial_where_passes_are_shared(slack):
    model = bart()
    model.model.encoder.layernorm_embedding = Centred(model.model.encoder.layernorm_embedding)
    with pytest.raises(ValueError, match="a layer mixes examples"):
        refuse_untrainable(
            model, examples(4), SEQUENCE, 1.0, shared_passes=slack is None, slack=slack
        )
    refuse_untrainable(model, examples(4), SEQUENCE, 1.0)  # Each record passes alone.


def test_models_whose_examples_stay_apart_pass_the_trial_at_float32s_own_slack():
    refuse_untrainable(bart(), examples(6), SEQUENCE, 1.0, shared_passes=True)
