"""Private prediction through a real vLLM: the tokens, their payment and the cost are the loop's."""

import os
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from mailboxes import public_rows

from dpsynth_assets.datasets.public_spec import EngineSpec, LanguageModelSpec
from dpsynth_assets.methods.inputs import PrivateInputs, PublicInputs
from dpsynth_assets.methods.private_prediction import decoding
from dpsynth_assets.methods.private_prediction.decoding import self_tested
from dpsynth_assets.methods.registry import bound_method
from dpsynth_assets.methods.shared_histograms import ClusterHistogram
from dpsynth_assets.models.decoding import sample_documents
from dpsynth_assets.models.engines.protocol import Sampling
from dpsynth_assets.models.transformers_decoder.decoder import TransformersDecoder
from dpsynth_assets.models.vllm_decoder import LockstepError, VllmDecoderError, opening
from dpsynth_assets.models.vllm_decoder.decoder import VllmDecoder
from dpsynth_assets.models.vllm_decoder.engine import VllmEngine
from dpsynth_assets.models.vllm_decoder.lockstep import Step
from dpsynth_assets.privacy import noise, sparse_vector
from dpsynth_assets_tests.methods.cohorts import MemoryPasses, made_terms, records_of

LABELS = ("billing", "delivery")
NAMES = ("mean_uniform", "mean_clustered", "median_clustered", "mean_svt", "invisible_ink")
ROWS = 96
"""Contexts that the small decoder takes, and tokens of its steps."""
BATCHES = {
    "expected_batch_size": 4,
    "batches_per_forward": 2,
    "max_batches": 4,
    "max_document_tokens": 12,
    "max_example_tokens": 30,
    "min_tokens_for_new_document": 4,
    "clip_bound": 4.0,
}
OWN = {
    "mean_uniform": {"public_top_k": 40},
    "mean_svt": {"svt_noise_scale": 0.3, "max_tokens_per_batch": 50},
}
TARGET = {"mean_svt": 2500.0, "invisible_ink": 40.0}
SLACK = 3e-5
"""What a plan charges by default: how far other rows may move a row's logits."""


@pytest.fixture(scope="module")
def decoder(language_model):
    """So small that prompts are read in parts, and parts wait for one another."""
    opened = VllmDecoder(language_model, cache_gib=0.02, most_rows=ROWS, step_tokens=ROWS)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def texts():
    return public_rows(24, seed=11)


@pytest.fixture
def seeded(monkeypatch):
    """Replaces entropy by a seeded stream that can be begun anew: in tests only."""
    state = SimpleNamespace(draw=None)

    def begin():
        state.draw = np.random.default_rng(17)
        noise.secure_words._forget()

    def laplace(values, scale):
        share = 1 - np.exp(-1 / float(scale))
        first, second = state.draw.geometric(share, (2, len(values)))
        return [int(v + a - b) for v, a, b in zip(values, first, second, strict=True)]

    monkeypatch.setattr(noise, "_entropy", lambda count: bytearray(state.draw.bytes(count)))
    monkeypatch.setattr(sparse_vector, "discrete_laplace", laplace)
    yield begin
    noise.secure_words._forget()


def terms(decoder, **changes):
    declared = {
        "cohort": "tickets",
        "epsilon": 5000.0,
        "labels": LABELS,
        "label_texts": LABELS,
        "public_records": 16,
        "accepts_ex_post": True,
        "has_cluster_histogram": True,
        "language_model": LanguageModelSpec(kind="pretrained", model="here", decoder=decoder),
    }
    return made_terms(**(declared | changes))


def planned(name, decoder, **settings):
    method = bound_method(name, BATCHES | OWN.get(name, {}) | settings, terms(decoder))
    return method, method.plan(TARGET.get(name, 120.0))


def inputs(language_model, texts):
    draw = np.random.default_rng(2)
    embeddings = draw.normal(size=(len(texts) + 4, 5)).astype(np.float32)
    embeddings /= np.linalg.norm(embeddings, axis=1, keepdims=True)
    records = records_of([row["text"] for row in texts], LABELS)
    private = PrivateInputs(records=records, embeddings=embeddings[4:])
    public = PublicInputs(
        language_model=language_model,
        salt="public salt",
        cluster_centers=embeddings[:4],
        cluster_histogram=ClusterHistogram(
            labels=LABELS, centers=((0, 2), (1, 3)), dp_counts=((6, 6), (6, 6))
        ),
    )
    return private, public


def released(name, kind, language_model, texts, **settings):
    """What a method releases, and what its passes drew."""
    _method, plan = planned(name, kind, **settings)
    assert plan.refusal is None, plan.refusal
    private, public = inputs(language_model, texts)
    kept = MemoryPasses()
    private = replace(private, passes=kept)
    (stage,) = plan.stages
    stage.check(public)
    return plan, stage.release(private, public, None, lambda *_: None), kept.kept


@pytest.fixture
def opened_small(monkeypatch, decoder):
    monkeypatch.setattr(opening, "opened_decoder", lambda *_: decoder)
    return decoder


@pytest.mark.parametrize("name", NAMES)
def test_the_same_noise_gives_the_same_tokens_and_the_same_cost(
    name, language_model, texts, seeded, opened_small, monkeypatch
):
    partial, see = [], Step.see

    def spy(step, rows, logits):
        partial.append(bool(step._partial_rows(len(logits)).any()))
        see(step, rows, logits)

    monkeypatch.setattr(Step, "see", spy)
    results = []
    for kind in ("transformers", "vllm"):
        seeded()
        results.append(released(name, kind, language_model, texts))
    (_, theirs, their_passes), (plan, ours, our_passes) = results
    assert ours.value.rows.equals(theirs.value.rows)
    assert len(ours.value.rows) > 3
    assert ours.value.facts == theirs.value.facts
    assert plan.parameters["decoder"] == "vllm"
    assert plan.parameters["logit_slack"] > 0
    assert ours.cost.event == theirs.cost.event
    if name == "median_clustered":
        assert ours.cost.ex_post_epsilon == pytest.approx(theirs.cost.ex_post_epsilon, rel=1e-4)
        for number, values in our_passes.items():
            expected = their_passes[number].pop("draw_costs")
            np.testing.assert_allclose(values.pop("draw_costs"), expected, atol=1e-4)
            expected = their_passes[number].pop("costs")
            np.testing.assert_allclose(values.pop("costs"), expected, atol=1e-3)
    assert our_passes == their_passes  # documents, and which of their tokens were paid
    if name == "mean_svt":
        facts = ours.value.facts
        assert facts["private_tokens"] > 5
        assert facts["public_tokens"] > 5
    assert any(partial)  # prompts were read in parts
    assert not opened_small._groups  # and all contexts were closed


def packed(language_model, prompts, columns, new):
    return TransformersDecoder(language_model.model).open(
        prompts, prompt_columns=columns, max_new_tokens=new
    )


def served(decoder, prompts, columns, new):
    return decoder.open(prompts, prompt_columns=columns, max_new_tokens=new)


def prompts_of(sizes, seed=0, shared=40):
    """Prompts of `sizes` = (length of a shared beginning, own tokens)."""
    draw = np.random.default_rng(seed)
    begin = draw.integers(2, 400, shared).tolist()
    return [begin[:common] + draw.integers(2, 400, own).tolist() for common, own in sizes]


SIZES = [(40, 5), (40, 1), (40, 60), (0, 1), (0, 32), (33, 32), (0, 33), (1, 64)]


def follow(first, second, steps, *, seed=0, longest=18, disturb=None):
    """Feeds both contexts the same tokens; documents end at random. The largest difference."""
    draw, worst = np.random.default_rng(seed), 0.0
    written = torch.zeros(len(first), dtype=torch.long)
    tokens = torch.zeros_like(written)
    for step in range(steps):
        if disturb is not None:
            written, tokens = disturb(step, written, tokens)
        ours, theirs = first.next_logits(tokens, written), second.next_logits(tokens, written)
        assert ours.dtype == torch.float32
        worst = max(worst, float((ours - theirs).abs().max()))
        tokens = torch.from_numpy(draw.integers(2, 400, len(first)))
        ends = torch.from_numpy(draw.random(len(first)) < 0.15) | (written >= longest)
        written = torch.where(ends, 0, written + 1)
    return worst


def test_logits_equal_packed_contexts_while_documents_begin_anew(decoder, language_model):
    prompts = prompts_of(SIZES)
    ours, theirs = served(decoder, prompts, 110, 20), packed(language_model, prompts, 110, 20)

    def keep_some(step, written, tokens):
        if step != 30:
            return written, tokens
        kept = torch.tensor([6, 1, 2, 5])
        ours.keep(kept)
        theirs.keep(kept)
        return written[kept], tokens[kept]

    assert follow(ours, theirs, 60, disturb=keep_some) < SLACK
    assert len(ours) == 4


def test_a_preempted_context_is_read_again_while_the_others_wait(decoder, language_model):
    prompts = prompts_of(SIZES, seed=3)
    ours, theirs = served(decoder, prompts, 110, 20), packed(language_model, prompts, 110, 20)
    scheduler = decoder._scheduler

    def preempt(step, written, tokens):
        if step == 7:  # all of them
            scheduler.reset_prefix_cache(reset_running_requests=True)
        if step == 15:  # one of them
            request = scheduler.requests[f"{ours._group}-3"]
            scheduler.running.remove(request)
            scheduler._preempt_request(request, 0.0)
            scheduler.prev_step_scheduled_req_ids.discard(request.request_id)
        return written, tokens

    assert follow(ours, theirs, 30, disturb=preempt) < SLACK
    members = [scheduler.requests[f"{ours._group}-{number}"] for number in range(len(prompts))]
    assert [each.num_preemptions for each in members] == [1, 1, 1, 2, 1, 1, 1, 1]


def test_cached_prompts_are_shared_within_a_pass_and_hold_no_document(decoder, language_model):
    pool = decoder._scheduler.kv_cache_manager.block_pool
    prompts = prompts_of([(64, 1), (64, 1), (64, 40), (64, 0), (64, 1)], shared=64)
    ours, theirs = served(decoder, prompts, 110, 40), packed(language_model, prompts, 110, 40)
    assert follow(ours, theirs, 80, seed=4, longest=38) < SLACK
    requests = [
        decoder._scheduler.requests[f"{ours._group}-{number}"] for number in range(len(prompts))
    ]
    manager = decoder._scheduler.kv_cache_manager
    first = {manager.get_block_ids(each.request_id)[0][0] for each in requests}
    assert len(first) == 1  # one block for all
    for request in requests:
        for place, block in enumerate(manager.get_block_ids(request.request_id)[0]):
            whole = (place + 1) * 32 <= request.num_prompt_tokens
            assert whole or pool.blocks[block].block_hash is None
    other = served(decoder, prompts, 110, 40)
    start = torch.zeros(len(prompts), dtype=torch.long)
    other.next_logits(start, start)
    theirs_first = {
        manager.get_block_ids(name)[0][0]
        for name in decoder._scheduler.requests
        if name.startswith(other._group)
    }
    assert not first & theirs_first  # another pass shares nothing with it


def test_public_rows_follow_no_private_row_to_the_last_bit(decoder):
    public = prompts_of([(40, 2), (40, 9)], seed=5)
    seen = []
    for seed, sizes in enumerate([SIZES, SIZES[:3], []]):
        private = served(decoder, prompts_of(sizes, seed=seed), 110, 20)
        beside = decoder.open(public, prompt_columns=50, max_new_tokens=20, public=True)
        draw, mine = np.random.default_rng(6), []
        for step in range(20):
            tokens = torch.from_numpy(draw.integers(2, 400, 2))
            written = torch.full((2,), step % 12)
            mine.append(beside.next_logits(tokens, written).clone())
            own = torch.full((len(sizes),), step % 12)
            private.next_logits(own + 5, own)
        seen.append(torch.stack(mine))
    assert torch.equal(seen[0], seen[1])
    assert torch.equal(seen[0], seen[2])


def test_other_rows_move_a_row_by_less_than_the_slack(decoder):
    (row,) = prompts_of([(40, 30)], seed=7)
    found = []
    for seed in range(6):
        others = prompts_of([(40, own) for own in (1, 50, 9, 33, 17)[: seed + 1]], seed=seed)
        place = seed % (len(others) + 1)
        contexts = served(decoder, [*others[:place], row, *others[place:]], 110, 20)
        mine = []
        for step in range(15):
            written = torch.full((len(contexts),), step)
            mine.append(contexts.next_logits(written + 9, written)[place].clone())
        found.append(torch.stack(mine))
    moved = max(float((each - found[0]).abs().max()) for each in found)
    assert moved < SLACK


@pytest.mark.parametrize("rows", [1, 15, 16, 17])
def test_no_step_of_private_rows_is_small(decoder, monkeypatch, rows):
    """Kernels round otherwise for a row, or a token, that is alone."""
    seen, schedule = [], type(decoder._scheduler).schedule

    def spy(scheduler, *arguments):
        output = schedule(scheduler, *arguments)
        seen.append((scheduler._together, list(output.num_scheduled_tokens.values())))
        return output

    monkeypatch.setattr(type(decoder._scheduler), "schedule", spy)
    contexts = served(
        decoder, prompts_of([(0, 2 + 60 * (number % 2)) for number in range(rows)]), 70, 5
    )
    for step in range(4):
        written = torch.full((len(contexts),), step)
        contexts.next_logits(written + 9, written)
        if step == 2:
            contexts.keep(torch.arange(len(contexts))[: rows - 1])
    together = [tokens for is_together, tokens in seen if is_together]
    parts = [tokens for is_together, tokens in seen if not is_together]
    filled = [-(-each // 16) * 16 for each in (rows, rows - 1)]
    expected = [filled[0]] * 3 + [filled[1]] * (rows > 1)
    assert [len(tokens) for tokens in together] == expected
    assert all(set(tokens) == {1} for tokens in together)
    assert parts
    assert all(sum(tokens) > 32 for tokens in parts)


def test_public_text_is_sampled_in_parts_that_fit(decoder, language_model):
    prompts = prompts_of([(40, 1 + number % 30) for number in range(3 * ROWS)], seed=8)
    given, sampling = (language_model, prompts), Sampling(max_new_tokens=6, seed=4)
    plain = TransformersDecoder(language_model.model)
    assert sample_documents(decoder, *given, sampling) == sample_documents(plain, *given, sampling)
    assert sample_documents(decoder, language_model, [], sampling) == []


def test_a_pass_that_is_collected_during_a_step_is_closed_after_it(decoder, monkeypatch):
    """Python may collect contexts anywhere; a step whose requests change would not be the pass."""
    written = torch.zeros(len(SIZES), dtype=torch.long)
    ours, other = (served(decoder, prompts_of(SIZES, seed=seed), 110, 20) for seed in (8, 9))
    for contexts in (other, ours):
        contexts.next_logits(written, written)
    manager = decoder._scheduler.kv_cache_manager
    allocate = manager.allocate_slots

    def collected(*arguments, **options):
        decoder.close_group(other._group)
        return allocate(*arguments, **options)

    monkeypatch.setattr(manager, "allocate_slots", collected)
    assert len(ours.next_logits(written + 7, written + 1)) == len(SIZES)
    assert other._group not in decoder._groups
    assert ours._group in decoder._groups


def test_float32_products_stay_float32_in_the_whole_process(decoder):
    """A variable of vLLM would make them TF32 or bfloat16, also where records are embedded."""
    assert os.environ["VLLM_FLOAT32_MATMUL_PRECISION"] == "highest"
    assert torch.get_float32_matmul_precision() == "highest"


def test_a_pass_without_contexts_costs_nothing(decoder):
    contexts = served(decoder, [], 50, 10)
    nothing = torch.zeros(0, dtype=torch.long)
    assert contexts.next_logits(nothing, nothing).shape == (0, decoder.vocabulary)
    contexts.keep(nothing)


def test_more_contexts_than_there_is_room_for_are_refused_and_none_is_counted(decoder):
    with pytest.raises(VllmDecoderError, match="has room for, got more") as refused:
        served(decoder, prompts_of([(0, 4)] * (ROWS + 1)), 10, 5)
    assert str(ROWS + 1) not in str(refused.value)
    assert not decoder._groups


@pytest.mark.parametrize("name", NAMES)
def test_a_pass_larger_than_vllm_takes_is_refused_before_a_charge(
    name, language_model, texts, opened_small
):
    _method, plan = planned(name, "vllm", batches_per_forward=32)
    _, public = inputs(language_model, texts)
    with pytest.raises(VllmDecoderError, match=f"contexts and .* got {ROWS} and ") as refused:
        plan.stages[0].check(public)
    assert "\n" not in str(refused.value)


def test_a_cache_smaller_than_a_pass_is_refused_before_a_charge(
    language_model, texts, opened_small, monkeypatch
):
    pool = opened_small._scheduler.kv_cache_manager.block_pool
    monkeypatch.setattr(pool, "num_gpu_blocks", 40)
    _, plan = planned("mean_uniform", "vllm")
    with pytest.raises(VllmDecoderError, match="tokens of keys and values") as refused:
        plan.stages[0].check(inputs(language_model, texts)[1])
    assert "\n" not in str(refused.value)


def test_a_model_that_vllm_cannot_load_gives_one_line(language_model, tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "llama", "architectures": ["Nope"]}')
    missing = SimpleNamespace(
        source=str(tmp_path), name="broken", dtype="float32", config=language_model.config
    )
    with pytest.raises(VllmDecoderError, match="vLLM could not open broken") as refused:
        opening.opened_decoder(missing, EngineSpec(kind="vllm", cache_gib=0.02))
    assert "\n" not in str(refused.value)


def test_a_declaration_opens_vllm_and_its_weights_once(language_model, texts, seeded):
    """By the declared path alone: nothing but the spec says what decodes."""
    engine = EngineSpec(kind="vllm", cache_gib=0.1)
    method = bound_method("mean_uniform", BATCHES, terms("vllm", engine=engine))
    plan = method.plan(60.0)
    private, public = inputs(language_model, texts)
    (stage,) = plan.stages
    seeded()
    stage.check(public)
    (first,) = opening._opened.values()
    made = stage.release(private, public, None, lambda *_: None)
    assert len(made.value.rows)
    assert made.cost.event == plan.event
    assert list(opening._opened.values()) == [first]
    opening.close_decoders()
    assert first.is_stopped


def test_closing_one_vllm_leaves_the_others_of_the_process(vllm_engine, decoder, language_model):
    greedy = Sampling(temperature=0, max_new_tokens=5)
    before = vllm_engine.generate(["hello"], greedy)
    start = torch.zeros(1, dtype=torch.long)
    logits = served(decoder, [[5, 6, 7]], 10, 5).next_logits(start, start)
    VllmDecoder(language_model, cache_gib=0.02, most_rows=32).close()
    spec = EngineSpec(kind="vllm", batch_rows=4, cache_gib=0.05)
    VllmEngine(language_model, spec).close()
    assert vllm_engine.generate(["hello"], greedy) == before
    assert torch.equal(served(decoder, [[5, 6, 7]], 10, 5).next_logits(start, start), logits)


def test_no_company_moves_a_bit_in_the_self_test_of_one_thread(decoder, language_model):
    found = self_tested(decoder, language_model)
    assert found.by == 0.0
    assert found.engine.startswith("vllm 0.32.0")
    assert (found.device, found.dtype) == ("cpu", "float32")
    assert (found.contexts, found.companies) > (64, 16)
    assert self_tested(decoder, language_model) is found  # once a process
    assert not decoder._groups


def test_the_self_test_refuses_a_model_whose_rows_follow_their_step(
    decoder, language_model, monkeypatch
):
    model = decoder._runner.model
    compute = model.compute_logits

    def mixed(states):
        logits = compute(states)
        return logits + 1e-3 * logits.mean(dim=0, keepdim=True)

    monkeypatch.setattr(model, "compute_logits", mixed)
    monkeypatch.delitem(decoding._tested, decoder, raising=False)
    with pytest.raises(ValueError, match="Expected a self-test in which no other row") as refused:
        self_tested(decoder, language_model)
    assert "\n" not in str(refused.value)
    del decoding._tested[decoder]


class TestBroken:
    """Each test breaks vLLM in its own way; it may not be used afterwards."""

    @pytest.fixture
    def broken(self, language_model):
        opened = VllmDecoder(language_model, cache_gib=0.02, most_rows=ROWS, step_tokens=ROWS)
        yield opened
        opened.close()

    @pytest.fixture
    def contexts(self, broken):
        begun = served(broken, prompts_of(SIZES), 110, 20)
        start = torch.zeros(len(begun), dtype=torch.long)
        begun.next_logits(start, start)
        return begun

    def violate(self, broken, contexts, monkeypatch, capfd):
        """Takes a step, which has to fail before vLLM samples."""
        sampled, runner = [], broken._runner
        sampler = type(runner.sampler)
        sample = sampler.sample

        def spy(self, logits, metadata):
            sampled.append(logits)
            return sample(self, logits, metadata)

        monkeypatch.setattr(sampler, "sample", spy)
        one = torch.ones(len(contexts), dtype=torch.long)
        with pytest.raises(LockstepError, match="nothing was sampled") as raised:
            contexts.next_logits(one + 3, one)
        assert not sampled
        assert "\n" not in str(raised.value)
        assert not re.search(r"\d", str(raised.value))
        seen = capfd.readouterr()
        assert "pass0" not in seen.out + seen.err
        with pytest.raises(VllmDecoderError, match="an earlier failure"):
            contexts.next_logits(one + 3, one)

    def test_a_step_without_a_member_raises(self, broken, contexts, monkeypatch, capfd):
        reserve = type(broken._scheduler)._reserve_prefill_lookahead

        def without_one(scheduler, request, computed, new):
            if request.request_id.endswith("-2"):
                return 0
            return reserve(scheduler, request, computed, new)

        monkeypatch.setattr(type(broken._scheduler), "_reserve_prefill_lookahead", without_one)
        self.violate(broken, contexts, monkeypatch, capfd)

    def test_a_step_with_another_pass_raises(self, broken, contexts, monkeypatch, capfd):
        other = served(broken, prompts_of([(0, 5)]), 110, 20)
        from dpsynth_assets.models.vllm_decoder import scheduler

        monkeypatch.setattr(scheduler, "_group_of", lambda request: contexts._group)
        self.violate(broken, contexts, monkeypatch, capfd)
        assert len(other) == 1

    def test_a_document_that_vllm_has_otherwise_raises(self, broken, contexts, monkeypatch, capfd):
        next(iter(broken._runner.requests.values())).output_token_ids.append(7)
        next(iter(broken._runner.requests.values())).output_token_ids.append(7)
        monkeypatch.setattr(type(broken._llm), "collective_rpc", lambda *_, **__: [None])
        self.violate(broken, contexts, monkeypatch, capfd)

    def test_a_member_that_ended_its_prompt_too_early_raises(self, broken, monkeypatch, capfd):
        contexts = served(broken, prompts_of(SIZES), 110, 20)
        monkeypatch.setattr(
            type(broken._scheduler),
            "_reserve_prefill_lookahead",
            lambda _self, _request, _computed, new: new,
        )
        one = torch.zeros(len(contexts), dtype=torch.long)
        with pytest.raises(LockstepError, match="nothing was sampled"):
            contexts.next_logits(one, one)

    def test_documents_grow_by_one_token(self, broken, contexts):
        two = torch.full((len(contexts),), 2)
        with pytest.raises(LockstepError, match="one token per step"):
            contexts.next_logits(two, two)

    def test_a_step_that_fails_otherwise_says_its_kind_alone(self, broken, capfd):
        contexts = served(broken, [[5, 123_456_789]], 110, 20)
        start = torch.zeros(1, dtype=torch.long)
        with pytest.raises(VllmDecoderError, match=r"stopped with \w+Error") as raised:
            contexts.next_logits(start, start)
        seen = capfd.readouterr()
        assert "123" not in str(raised.value)
        assert "123456789" not in seen.out + seen.err
