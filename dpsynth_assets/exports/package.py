"""Writes a package to share: a published corpus, or a generator as the ledger recorded it.

A package is written whole or not at all, after the ledger has a line of what leaves in it.
"""

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import polars as pl

from dpsynth_assets.files.whole import file_digests, file_names, replaced_whole, short_text
from dpsynth_assets.methods.audits import results_behind
from dpsynth_assets.methods.dataset_plan import PlannedMethod
from dpsynth_assets.methods.stages import EXPORTED, FINETUNED_GENERATOR
from dpsynth_assets.paths import home
from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.privacy.ledger import Ledger, LedgerEntry
from dpsynth_assets.privacy.ledger.proof import ProvenEntry, TreeHead, leads_to, proven
from dpsynth_assets.privacy.ledger.schema import RECOVERY, RESERVE
from dpsynth_assets.releases.published_rows import published_problems
from dpsynth_assets.releases.store import (
    StoredReleases,
    last_charge,
    problem_behind,
    sealed_release,
)
from dpsynth_assets.report.attack_record import attacks_on_release, refusal
from dpsynth_assets.report.cards import (
    CARD_FILE,
    LABEL_FILE,
    HubFacts,
    hub_dataset_card,
    hub_model_card,
)
from dpsynth_assets.report.label import CORPUS, GENERATOR, corpus_label
from dpsynth_assets.run.runner import Runner

ROWS_PER_FILE = 100_000
PROMPTS_FILE = "prompts.json"
MECHANISM = "export"
RELEASE = "release"
"""Name of the exported release among the inputs of a package's entry."""


PROOF_FILE = "ledger_proof.json"
PROOF_SCHEMA = "dpsynth/ledger-proof/1"


@dataclass(frozen=True, kw_only=True)
class LedgerProof:
    """What a package shows of the ledger that paid for it.

    Attributes:
        head: Head that all paths lead to.
        package: The entry that names the package's files by their digests.
        entries: Every entry of the cohort and every recovery of the ledger, up to the one that the
            label was written after, and the package's own, in order.
    """

    head: TreeHead
    package: LedgerEntry
    entries: tuple[ProvenEntry, ...]

    @classmethod
    def of(cls, entries: Sequence[LedgerEntry], reservation: str, last: int) -> "LedgerProof":
        """Collects the proof of one package.

        Args:
            entries: The whole ledger, in order.
            reservation: The package's own entry.
            last: Number of the entry that its label was written after.
        """
        package = next(e for e in entries if e.kind == RESERVE and e.reservation == reservation)
        head, shown = proven(entries, [*entries_behind(entries, package.cohort, last), package])
        return cls(head=head, package=package, entries=tuple(shown))

    def write(self, folder: Path) -> None:
        """Writes the proof into a package."""
        (folder / PROOF_FILE).write_text(self._text(), encoding="utf-8")

    def _text(self) -> str:
        document = {
            "schema": PROOF_SCHEMA,
            "head": vars(self.head),
            "package": self.package.reservation,
            "entries": [each.to_json() for each in self.entries],
        }
        return json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False) + "\n"

    def behind(self, last: int) -> list[LedgerEntry]:
        """Entries from which the label follows.

        Args:
            last: Number of the entry that the label was written after.

        Raises:
            PrivacyError: The proof shows others than these and the package's own.
        """
        shown = [each.entry for each in self.entries]
        behind = entries_behind(shown, self.package.cohort, last)
        if shown != [*behind, self.package]:
            raise PrivacyError("expected only the entries behind the label, got further ones.")
        return behind

    @classmethod
    def read(cls, folder: Path) -> "LedgerProof":
        """Reads a package's proof, and follows every path.

        Raises:
            PrivacyError: There is none, or it cannot be read, or an entry leads to another head.
        """
        try:
            found = cls._parsed(short_text(folder / PROOF_FILE))
            lost = [each.entry.seq for each in found.entries if not leads_to(each, found.head)]
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise PrivacyError("expected a readable proof, got no file or another one.") from None
        if lost:
            raise PrivacyError(
                f"entry {lost[0]} does not lead to the head: the entry, its path or the head was "
                "altered."
            )
        return found

    @classmethod
    def _parsed(cls, text: str) -> "LedgerProof":
        stored = json.loads(text)
        entries = tuple(ProvenEntry.from_json(each) for each in stored["entries"])
        charges = {e.entry.reservation: e.entry for e in entries if e.entry.kind == RESERVE}
        head = TreeHead(int(stored["head"]["entries"]), str(stored["head"]["root"]))
        found = cls(head=head, package=charges[stored["package"]], entries=entries)
        places = [each.entry.seq for each in entries]
        if found._text() != text or places != sorted(set(places)):
            raise ValueError("Expected each entry once, in order, and nothing beside a proof.")
        return found


def entries_behind(entries: Sequence[LedgerEntry], cohort: str, last: int) -> list[LedgerEntry]:
    """Entries from which a label of a cohort follows, up to entry `last`."""
    seen = (each for each in entries if each.seq <= last)
    return [each for each in seen if each.cohort == cohort or each.kind == RECOVERY]


def write_package(
    runner: Runner,
    target: Path,
    *,
    folder: str,
    label: Mapping[str, Any],
    hub: HubFacts,
    fill: Callable[[Path], None],
) -> TreeHead:
    """Writes a package of a cohort; an earlier one at the same place is replaced.

    Args:
        runner: Writes the line of the ledger, and keeps the list of files under it.
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
    subject, last, spec = label["subject"], label["cohort"]["as_of_entry"], runner.plan.spec
    with replaced_whole(target) as temporary:
        fill(temporary)
        files = file_digests(temporary)
        behind = entries_behind(runner.ledger.entries(), spec.account, last)
        stored = runner.record(
            f"{spec.name}/{folder}/{EXPORTED}_{subject['kind']}",
            mechanism=MECHANISM,
            parameters={
                "files": files,
                "card": asdict(hub),
                "entries_behind": len(behind),
                "inputs": {RELEASE: subject["reservation"]},
            },
            release=str(subject["release"]),
            facts={"files": files},
        )
        proof = LedgerProof.of(runner.ledger.entries(), stored.reservation.id, last)
        proof.write(temporary)
    return proof.head


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


def export_corpus(runner: Runner, planned: PlannedMethod, target: Path, hub: HubFacts) -> TreeHead:
    """Packs a published corpus: rows that passed the release gate, under their own label.

    Raises:
        PrivacyError: Nothing was published, or what is there is not what the ledger sealed, or an
            attack on these very settings has refuted their claim since.
    """
    published = home().released / runner.plan.spec.name / planned.folder
    if not (published / LABEL_FILE).is_file():
        raise PrivacyError(
            f"Expected a published corpus of {planned.folder!r} in {published}, got none. Run "
            f"`dpsynth run {runner.plan.spec.name}`, which publishes what passes the release gate."
        )
    problems = published_problems(runner.plan.spec, planned, published, runner.ledger, runner.store)
    if problems:
        raise PrivacyError(f"{published}: {'; '.join(problems)}")
    label = json.loads((published / LABEL_FILE).read_text())
    refuse_refuted(runner.ledger.entries(), label["subject"]["reservation"])
    rows = pl.read_parquet(published / "data")
    return write_package(
        runner,
        target,
        folder=planned.folder,
        label=label,
        hub=hub,
        fill=lambda folder: write_corpus(folder, label, rows, hub),
    )


def export_generator(
    runner: Runner, planned: PlannedMethod, target: Path, hub: HubFacts
) -> TreeHead:
    """Packs the weights that a method fine-tuned on the records, under a label of their own.

    Raises:
        PrivacyError: The method releases no generator, or has not yet, or an attack on these very
            settings refuted their claim.
    """
    if planned.method.prompts is None:
        raise PrivacyError(
            f"Expected a method that releases a generator, got {planned.folder!r}, which releases "
            "a corpus alone. Export that, or name another method."
        )
    asset = f"{runner.plan.spec.name}/{planned.folder}/{FINETUNED_GENERATOR}"
    charge = last_release(runner.ledger, runner.store, asset, runner.plan.spec.account)
    entries = runner.ledger.entries()
    attacks = refuse_refuted(entries, charge.reservation)
    audits = [*results_behind(entries, charge.reservation), *attacks]
    label = corpus_label(entries, charge.reservation, audits, kind=GENERATOR)
    weights = runner.store.files(charge.reservation)
    prompts = planned.method.prompts(weights)
    return write_package(
        runner,
        target,
        folder=planned.folder,
        label=label,
        hub=hub,
        fill=lambda folder: write_generator(folder, label, weights, prompts, hub),
    )


def refuse_refuted(entries: Sequence[LedgerEntry], reservation: str) -> list[dict[str, Any]]:
    """Refuses to hand out a release whose claim an attack has refuted.

    Args:
        entries: The ledger, in order.
        reservation: The charge of the release.

    Returns:
        The attacks that concern it, as a label prints them.

    Raises:
        PrivacyError: One of them refuted its claim, or that of what it was made from.
    """
    attacks = attacks_on_release(entries, reservation)
    if (refused := refusal(attacks)) is not None:
        raise PrivacyError(refused)
    return attacks


def last_release(ledger: Ledger, store: StoredReleases, asset: str, account: str) -> LedgerEntry:
    """The charge of the last release of an asset, after comparing its files with the ledger.

    Raises:
        PrivacyError: It was never released, or the store holds other files.
    """
    if (last := last_charge(ledger, asset, account)) is None:
        raise PrivacyError(f"Expected a release of {asset}, got none. Materialise it first.")
    sealed_release(ledger, store, last.reservation, asset)
    problem = problem_behind(last.reservation, ledger.provenance(), ledger, store)
    if problem is not None:
        raise PrivacyError(problem)
    return last


def write_corpus(folder: Path, label: Mapping[str, Any], rows: pl.DataFrame, hub: HubFacts) -> None:
    """Writes a corpus as `datasets.load_dataset` reads it.

    Args:
        folder: An empty folder.
        label: Privacy label of the published corpus.
        rows: Its rows.
        hub: What the card says besides.
    """
    (folder / "data").mkdir()
    parts = [rows.slice(start, ROWS_PER_FILE) for start in range(0, rows.height, ROWS_PER_FILE)]
    for number, part in enumerate(parts or [rows]):
        name = f"train-{number:05d}-of-{max(1, len(parts)):05d}.parquet"
        part.rechunk().write_parquet(folder / "data" / name)
    _write_text(folder, label, hub_dataset_card(label, rows, hub))


def write_generator(
    folder: Path, label: Mapping[str, Any], weights: Path, prompts: Mapping[str, str], hub: HubFacts
) -> None:
    """Writes a generator as `AutoModelForCausalLM.from_pretrained` reads it.

    Args:
        folder: An empty folder.
        label: Privacy label of the generator.
        weights: The released folder: weights with everything folded in, tokenizer, configuration.
        prompts: Label -> the text that a row of it is written after.
        hub: What the card says besides.
    """
    shutil.copytree(weights, folder, dirs_exist_ok=True, copy_function=shutil.copyfile)
    _write_prompts(folder, label, prompts, hub)


def write_again(source: Path, folder: Path, label: Mapping[str, Any], hub: HubFacts) -> None:
    """Writes what the files of a package say, but a generator's weights.

    Args:
        source: The package.
        folder: An empty folder.
        label: Its label.
        hub: What its card says besides.
    """
    if label["subject"]["kind"] == CORPUS:
        write_corpus(folder, label, pl.read_parquet(source / "data"), hub)
        return
    prompts = json.loads(short_text(source / PROMPTS_FILE))
    _write_prompts(folder, label, prompts, hub)


def _write_prompts(
    folder: Path, label: Mapping[str, Any], prompts: Mapping[str, str], hub: HubFacts
) -> None:
    document = json.dumps(dict(prompts), indent=1, ensure_ascii=False)
    (folder / PROMPTS_FILE).write_text(document + "\n", encoding="utf-8")
    _write_text(folder, label, hub_model_card(label, prompts, hub))


def _write_text(folder: Path, label: Mapping[str, Any], card: str) -> None:
    (folder / LABEL_FILE).write_text(json.dumps(label, indent=2, sort_keys=True))
    (folder / CARD_FILE).write_text(card, encoding="utf-8")
