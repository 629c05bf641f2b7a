from contextlib import nullcontext

import numpy as np
import pytest

from dpsynth_assets.privacy.errors import UnaccountedReleaseError
from dpsynth_assets.privacy.events import MixtureGaussianEvent
from dpsynth_assets.privacy.guarantees import GuaranteeType, NeighboringRelation
from dpsynth_assets.privacy.secret_clustering import SecretClustering
from dpsynth_assets.privacy.secret_noise import SecretSampling
from dpsynth_assets_tests.privacy.batched import Unread

CENTRES = np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
COUNTS = np.array([10.0, 20.0, 30.0])
EVERYBODY = SecretSampling.capped(probability=1.0, max_occurrences=2)
NOBODY = SecretSampling.capped(probability=0.0, max_occurrences=2)
QUIET = 1e-6
WRONG_SHAPE = pytest.raises(ValueError, match="shape")


def clustering(**changed):
    settings = {
        "public_centres": CENTRES,
        "public_counts": COUNTS,
        "l2_bound": 1.0,
        "sampling": EVERYBODY,
        "noise_std": 1.0,
    }
    return SecretClustering(**{**settings, **changed})


def test_clusters_merge_public_and_private_records():
    private = np.array([[0.8, 0.1], [0.6, -0.1], [0.0, 0.5]])
    clusters = clustering(noise_std=QUIET).release(private).value
    assert clusters.counts == pytest.approx([12, 21, 30], abs=1e-4)
    merged = [[(10 + 0.8 + 0.6) / 12, 0.0], [0.0, (20 + 0.5) / 21], [-1.0, 0.0]]
    assert clusters.centres == pytest.approx(np.array(merged), abs=1e-4)


def test_embeddings_and_centres_are_clipped_to_the_bound():
    clusters = clustering(noise_std=QUIET, public_centres=5 * CENTRES).release(
        np.array([[0.0, 1e9], [0.0, -1e300]])
    )
    assert clusters.value.counts == pytest.approx([11, 21, 30], abs=1e-4)
    assert clusters.value.centres[1] == pytest.approx([0.0, 1.0], abs=1e-4)
    assert clusters.value.centres[0] == pytest.approx([10 / 11, -1 / 11], abs=1e-4)


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
def test_a_broken_record_counts_as_the_zero_vector_and_spoils_nobody_else(broken):
    healthy = np.array([[0.0, 0.9], [-0.9, 0.0]])
    mechanism = clustering()
    both = mechanism._statistics.of(np.vstack([healthy, [[broken, 0.5]]]))
    one = mechanism._statistics.of(np.zeros((1, 2)))
    assert (both == mechanism._statistics.of(healthy) + one).all()


def test_statistics_do_not_depend_on_how_records_are_blocked(monkeypatch):
    private = np.random.default_rng(1).normal(size=(50, 2))
    whole = clustering()._statistics.of(private)
    monkeypatch.setattr("dpsynth_assets.privacy.secret_clustering.BLOCK_ENTRIES", 7)
    assert (clustering()._statistics.of(private) == whole).all()


def test_nobody_is_read_where_nobody_is_sampled():
    clusters = clustering(sampling=NOBODY, noise_std=QUIET).release(np.ones((1000, 2))).value
    assert clusters.counts == pytest.approx(COUNTS, abs=1e-4)


@pytest.mark.statistical
def test_records_are_sampled_independently_with_their_own_probability():
    # False alarm: seven standard deviations of a binomial, below 1e-11 a side.
    chances = np.repeat([0.0, 0.2, 1.0], 10_000)
    sampling = SecretSampling.from_public_incidence(chances, [np.array([0, 10_000])])
    private = np.repeat(CENTRES, 10_000, axis=0)
    counts = clustering(sampling=sampling, noise_std=QUIET).release(private).value.counts - COUNTS
    assert counts[0] == pytest.approx(0, abs=1e-3)
    assert abs(counts[1] - 2000) < 7 * np.sqrt(1600)
    assert counts[2] == pytest.approx(10_000, abs=1e-3)


@pytest.mark.statistical
def test_releases_draw_fresh_samples():
    # Sums of two samples agree to 1e-3 in all six coordinates with probability below 1e-15.
    half = SecretSampling.capped(probability=0.5, max_occurrences=1)
    private = np.random.default_rng(2).uniform(-0.7, 0.7, size=(400, 2))
    first, second = (
        clustering(sampling=half, noise_std=QUIET).release(private).value for _ in range(2)
    )
    assert not np.allclose(first.centres, second.centres, atol=1e-5)


def test_every_release_carries_one_round_of_the_planned_event():
    mechanism = clustering(sampling=SecretSampling.capped(probability=0.5, max_occurrences=1))
    release = mechanism.release(np.zeros((1, 2)))
    assert release.cost.guarantee is GuaranteeType.SECRET
    charged = release.cost.event
    assert isinstance(charged, MixtureGaussianEvent)
    assert (charged, charged.steps) == (mechanism.event, 1)
    assert charged.shifts == pytest.approx((0.0, np.sqrt(2)))
    assert charged.probabilities == (0.5, 0.5)


def test_one_release_too_many_is_refused_before_anything_is_read():
    # A caller who could retry for free after a refused shape could choose among noises.
    for first, refusal in ((np.zeros((1, 2)), nullcontext()), (np.zeros((1, 3)), WRONG_SHAPE)):
        mechanism = clustering()
        with refusal:
            mechanism.release(first)
        with pytest.raises(UnaccountedReleaseError, match="one more"):
            mechanism.release(Unread())


def test_public_clusters_cannot_be_changed_afterwards():
    centres, counts = CENTRES.copy(), COUNTS.copy()
    mechanism = clustering(public_centres=centres, public_counts=counts, noise_std=QUIET)
    centres[:], counts[:] = 0.0, 1.0
    clusters = mechanism.release(np.zeros((0, 2))).value
    assert clusters.centres == pytest.approx(CENTRES, abs=1e-4)
    assert clusters.counts == pytest.approx(COUNTS, abs=1e-4)


def test_probabilities_must_belong_to_the_records():
    sampling = SecretSampling.from_public_incidence(np.full(5, 0.5), [np.array([0])])
    with pytest.raises(ValueError, match="sampling probability"):
        clustering(sampling=sampling).release(np.zeros((4, 2)))


def test_replacement_is_charged_for_every_record_of_the_secret():
    event = clustering(relation=NeighboringRelation.REPLACE_ONE).event
    assert (event.shifts, event.probabilities) == ((4.0,), (1.0,))


def test_a_record_goes_to_the_nearest_centre_of_its_own_group():
    grouped = clustering(centre_groups=np.array([0, 1, 1]), noise_std=QUIET)
    private = np.array([[0.9, 0.1], [0.9, 0.1], [0.9, 0.1]])
    counts = grouped.release(private, np.array([0, 1, 7])).value.counts
    assert counts == pytest.approx([11, 21, 30], abs=1e-4)  # Group 7 has no centre.


def test_groups_leave_the_sensitivity_alone():
    grouped = clustering(centre_groups=np.array([0, 1, 1]))
    private = np.random.default_rng(3).normal(size=(6, 2))
    groups = np.array([0, 1, 0, 1, 1, 0])
    whole = grouped._statistics.of(private, groups)
    for record in range(6):
        rest = np.arange(6) != record
        moved = whole - grouped._statistics.of(private[rest], groups[rest])
        unit = int(grouped._statistics.of(np.zeros((1, 2)), np.array([0]))[:, 0].sum())
        assert sum(int(step) ** 2 for step in moved.reshape(-1)) <= 2 * unit**2


def test_groups_must_belong_to_records():
    with pytest.raises(ValueError, match="one group for each record"):
        clustering(centre_groups=np.array([0, 1, 1])).release(np.zeros((2, 2)), np.array([0]))


def test_sums_made_elsewhere_are_released_once_each_and_read_after_no_other():
    mechanism, asked = clustering(noise_std=QUIET), []
    private = np.array([[0.8, 0.1], [0.6, -0.1], [0.0, 0.5]])

    def summed(of):
        asked.append(of)
        return of(private[:1], None, 1.0) + of(private[1:], None, 1.0)

    made = mechanism.release_sums(summed).value
    together = clustering(noise_std=QUIET).release(private).value
    assert made.centres == pytest.approx(together.centres, abs=1e-4)
    assert made.counts == pytest.approx([12, 21, 30], abs=1e-4)
    with pytest.raises(UnaccountedReleaseError):
        mechanism.release_sums(summed)
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("sums", "error"),
    [
        (np.zeros((3, 3)), TypeError),
        (np.zeros((3, 2), dtype=np.int64), TypeError),
        (np.full((3, 3), 1 << 61, dtype=np.int64), OverflowError),
    ],
    ids=["floats", "another shape", "too many records"],
)
def test_what_is_no_sum_of_these_statistics_is_refused(sums, error):
    with pytest.raises(error):
        clustering().release_sums(lambda _: sums)
