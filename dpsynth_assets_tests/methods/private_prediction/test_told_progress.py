"""What a killed run drew and did not keep is in no message: it will be drawn anew."""

import re
from dataclasses import replace

import pytest

from dpsynth_assets_tests.methods.private_prediction.conftest import (
    NAMES,
    Killed,
    MemoryPasses,
    make_planned,
)


def run(name, cases, model, private, progress, passes=None, **changes):
    settings = {"max_document_tokens": 6, "batches_per_forward": 2}
    if name == "mean_svt":
        settings["max_tokens_per_batch"] = 60
    method, plan = make_planned(name, 5.0, **(settings | changes))
    cases.release(method, plan, replace(private, passes=passes), cases.clustered(model), progress)
    return plan


@pytest.mark.parametrize("threads", [1], indirect=True)
@pytest.mark.parametrize("name", NAMES)
def test_messages_of_a_killed_pass_are_those_of_any_other_draws(name, cases, threads):
    """Texts that end early or never, many records or none: the same lines, then the kill.

    One batch a pass, which opens no document that might remain unfinished: where its texts end
    decides at which step the pass does.
    """
    heard = []
    for ends, records in ((True, 64), (True, 0), (True, 3), (False, 64)):
        passes, lines = MemoryPasses(), []

        def progress(share, message, passes=passes, lines=lines):
            if passes.kept:
                raise Killed
            lines.append((share, message))

        model, private = cases.model(never_ends=not ends), cases.private(records)
        whole = {"min_tokens_for_new_document": 6, "batches_per_forward": 1}
        with pytest.raises(Killed):
            run(name, cases, model, private, progress, passes, **whole)
        heard.append(lines)
    assert all(lines == heard[0] for lines in heard)
    assert len(heard[0]) > 1  # It moves within a pass.


@pytest.mark.parametrize("name", NAMES)
def test_counts_are_those_of_kept_passes(name, cases, language_model, threads):
    passes, told = MemoryPasses(), []

    def progress(share, message):
        kept = [values["drawn"] for values in list(passes.kept.values())]
        told.append((message, kept))

    run(name, cases, language_model, cases.private(64), progress, passes)
    counted = 0
    for message, kept in told:
        paid = re.search(r"with (\d+) of", message)
        if paid is None:
            continue
        free = re.search(r"(\d+) public ones", message)
        shown = int(paid[1]), int(free[1]) if free else 0
        sums = {(0, 0)}  # A pass is kept a moment before it is told.
        for private, public in kept:
            sums |= {(a + private, b + public) for a, b in sums}
        assert shown in sums
        counted += 1
    assert counted >= len(passes.kept) > 1
    assert told[-1][0].startswith(f"{len(passes.kept)} of {len(passes.kept)} passes with")


@pytest.mark.parametrize("name", NAMES)
def test_without_a_store_no_draw_is_counted(name, cases, language_model):
    told = []
    run(name, cases, language_model, cases.private(64), lambda _, message: told.append(message))
    assert not any("tokens" in message for message in told)
