"""Writes a package whole or not at all, after the ledger has a line of what leaves in it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.exports.proof import PROOF_FILE, LedgerProof, entries_behind
from dpsynth_assets.files.whole_folders import file_digests, file_names, replaced_whole
from dpsynth_assets.methods.dataset_plan import DatasetPlan
from dpsynth_assets.methods.stages import EXPORTED
from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.privacy.ledger import Ledger
from dpsynth_assets.privacy.ledger.proof import TreeHead
from dpsynth_assets.releases.once import StoredRelease
from dpsynth_assets.releases.store import StoredReleases
from dpsynth_assets.report.cards import HubFacts
from dpsynth_assets.run.runner import recorded

MECHANISM = "export"
RELEASE = "release"
"""Name of the exported release among the inputs of a package's entry."""


@dataclass(frozen=True, kw_only=True)
class Packager:
    """Writes packages of one cohort.

    Attributes:
        spec: The cohort.
        plan: Its plan; a package is in it for nothing, being post-processing.
        ledger: Gets one line for each different package.
        store: Keeps the list of files under that line.
    """

    spec: PrivateDatasetSpec
    plan: DatasetPlan
    ledger: Ledger
    store: StoredReleases

    def write(
        self,
        target: Path,
        *,
        folder: str,
        label: Mapping[str, Any],
        hub: HubFacts,
        fill: Callable[[Path], None],
    ) -> TreeHead:
        """Writes a package; an earlier one at the same place is replaced.

        Args:
            target: Where the folder will lie.
            folder: Folder of the method in the cohort.
            label: Privacy label of what is in it.
            hub: What the card says besides.
            fill: Writes everything but the proof into an empty folder.

        Returns:
            The ledger's head that the proof leads to.

        Raises:
            PrivacyError: Something else lies at the target; nothing was written.

        **Privacy** Post-processing of what was released: charged nothing, and recorded.
        """
        refuse_other_folder(target)
        with replaced_whole(target) as temporary:
            fill(temporary)
            stored = self._recorded(folder, label, hub, file_digests(temporary))
            last = label["cohort"]["as_of_entry"]
            proof = LedgerProof.of(self.ledger.entries(), stored.reservation.id, last)
            proof.write(temporary)
        return proof.head

    def _recorded(
        self, folder: str, label: Mapping[str, Any], hub: HubFacts, files: dict[str, str]
    ) -> StoredRelease:
        subject, last = label["subject"], label["cohort"]["as_of_entry"]
        behind = entries_behind(self.ledger.entries(), self.spec.account, last)
        return recorded(
            self.plan,
            self.ledger,
            self.store,
            asset=f"{self.spec.name}/{folder}/{EXPORTED}_{subject['kind']}",
            mechanism=MECHANISM,
            parameters={
                "files": files,
                "card": hub.to_json(),
                "entries_behind": len(behind),
                "inputs": {RELEASE: subject["reservation"]},
            },
            release=str(subject["release"]),
            facts={"files": files},
        )


def refuse_other_folder(target: Path) -> None:
    """Refuses to replace what is no package.

    Raises:
        PrivacyError: There is a file, or a folder with other content, were it beside a package's.
    """
    if target.is_dir() and (not any(target.iterdir()) or _is_package(target)):
        return
    if target.exists():
        raise PrivacyError(
            f"--output: expected a new folder, or an earlier package, got {target}, which holds "
            "something else. Name another folder."
        )


def _is_package(folder: Path) -> bool:
    """Says whether a folder holds files of a package and no others, such as a repository's."""
    try:
        files = LedgerProof.read(folder).package.parameters["files"]
    except (PrivacyError, KeyError):
        return False
    return set(file_names(folder)) <= {PROOF_FILE, *files}
