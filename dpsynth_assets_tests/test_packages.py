"""A package of a few rows, which no model wrote: what a verifier reads, and which rows it takes."""

import os
import shutil

import polars as pl
import pytest

from dpsynth_assets.assets.published import publish_corpus
from dpsynth_assets.exports.exporting import export_corpus
from dpsynth_assets.exports.package import Packager
from dpsynth_assets.exports.proof import PROOF_FILE
from dpsynth_assets.exports.strangers_files import LONGEST_FILE, text_of
from dpsynth_assets.exports.verification import verify_package
from dpsynth_assets.methods.planning import plan_dataset
from dpsynth_assets.methods.requests import stage_request
from dpsynth_assets.privacy.guarantees import GuaranteeType
from dpsynth_assets.privacy.release import Cost
from dpsynth_assets.releases.once import Drawn, release_once
from dpsynth_assets.report.card_check import CARD_FILE, LABEL_FILE
from dpsynth_assets.report.hub import HubFacts
from dpsynth_assets.resources.ledger import PrivacyLedger
from dpsynth_assets.resources.release_store import ReleaseStore
from dpsynth_assets_tests.assets.declared_cases import letters

HUB = HubFacts(license="cc0-1.0", language="en", classes={"label": ["billing", "delivery"]})
ROWS = pl.DataFrame(
    {
        "text": ["The bill is wrong.", "The parcel is late.", "A bill again."],
        "label": ["billing", "delivery", "billing"],
        "origin": ["private", "private", "public"],
        "batch": [0, 1, 0],
        "n_tokens": [4, 4, 3],
    }
)


@pytest.fixture(scope="module")
def house(tmp_path_factory):
    """A cohort whose corpus was released and published, and its package."""
    root = tmp_path_factory.mktemp("house")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DPSYNTH_HOME", str(root / "home"))
        patch.delenv("DPSYNTH_LEDGER_URL", raising=False)
        spec = letters()
        plan = plan_dataset(spec)
        packager = Packager(
            spec=spec, plan=plan, ledger=PrivacyLedger().open(), store=ReleaseStore()
        )
        planned = plan.methods[0]
        (stage,) = planned.plan.stages
        request = stage_request(spec, planned, stage, release="1", inputs={})
        cost = Cost(guarantee=GuaranteeType.DP, event=request.event)
        stored = release_once(
            ledger=packager.ledger,
            store=packager.store,
            request=request,
            terms=plan.budget,
            plan=plan.releases,
            draw=lambda _: Drawn(facts={}, rows=ROWS, cost=cost),
        )
        candidate = ROWS.with_columns(pl.lit(stored.reservation.id).alias("reservation"))
        publish_corpus(spec, planned, candidate, packager.ledger)
        export_corpus(packager, planned, root / "package", HUB)
        yield packager, planned, root / "package"


@pytest.fixture
def package(house, tmp_path):
    copy = tmp_path / "package"
    shutil.copytree(house[2], copy)
    return copy


@pytest.mark.parametrize("name", [PROOF_FILE, LABEL_FILE, CARD_FILE, "data/more"])
def test_a_package_that_does_not_end_is_not_read(package, name):
    file = package / name
    for make in (os.mkfifo, lambda path: path.symlink_to("/dev/zero")):
        file.unlink(missing_ok=True)
        make(file)
        with pytest.raises(OSError, match="expected a file, got something else"):
            text_of(file)
        (problem,) = verify_package(package).problems
        assert problem == f"{name}: expected a file or a folder, got something else."
    file.unlink()
    with file.open("wb") as sparse:
        sparse.truncate(LONGEST_FILE + 1)
    assert verify_package(package).problems == (f"{name}: expected at most 64 GiB, got more.",)


def test_a_package_agrees(package):
    assert verify_package(package).problems == ()
