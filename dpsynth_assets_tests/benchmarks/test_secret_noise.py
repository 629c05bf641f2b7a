"""SecPE's simulation of appendix B.1: the printed noise, and what its sampling needs. About 5 s."""

import json

import pytest
from secret_noise import compare_noise, main, simulated_incidence

SMALL = ["--records", "800", "--incidence", "0.02", "--secrets", "20", "40"]


@pytest.fixture(scope="module")
def toy():
    return simulated_incidence(2_000, 100, 0.01, seed=0)


def test_the_printed_noise_promises_far_less_than_it_says(toy):
    row = compare_noise(toy, 2_000, prior=1e-4, ratio=10)
    assert row.printed < row.needed < row.gaussian
    assert row.printed_ratio > 4 * row.ratio


def test_rows_are_every_pair_of_secrets_and_ratios(capsys, tmp_path):
    place = tmp_path / "folder" / "ratio.png"
    main([*SMALL, "--ratios", "2", "10", "--json", "--plot", str(place)])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["secrets"], row["ratio"]) for row in rows] == [
        (20, 2), (20, 10), (40, 2), (40, 10),
    ]  # fmt: skip
    assert place.read_bytes().startswith(b"\x89PNG")


def test_what_is_printed_is_labelled_as_no_guarantee(capsys):
    main([*SMALL, "--ratios", "10"])
    assert capsys.readouterr().out.count("NO guarantee") == 2


def test_an_incidence_of_all_records_is_refused():
    with pytest.raises(ValueError, match="Expected"):
        simulated_incidence(10, 2, 1.0, 0)
