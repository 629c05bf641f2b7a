"""What may leave: a corpus as it was published, or a generator as the ledger sealed it."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from dpsynth_assets.exports.contents import write_corpus, write_generator
from dpsynth_assets.exports.package import Packager
from dpsynth_assets.methods.capabilities import ReleasesGenerator, capability
from dpsynth_assets.methods.dataset_plan import PlannedMethod
from dpsynth_assets.methods.stages import CANDIDATE_CORPUS, FINETUNED_GENERATOR
from dpsynth_assets.paths import home
from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.privacy.ledger import ChargeGraph, Ledger, LedgerEntry
from dpsynth_assets.privacy.ledger.proof import TreeHead
from dpsynth_assets.releases.published_rows import published_rows
from dpsynth_assets.releases.sealed import problem_behind, sealed_release
from dpsynth_assets.releases.store import StoredReleases
from dpsynth_assets.report.attack_record import attacks_on_release, refusal
from dpsynth_assets.report.cards import LABEL_FILE, HubFacts, corpus_problems, rows_problem
from dpsynth_assets.report.label import GENERATOR, corpus_label

FindAudits = Callable[[list[Any]], list[dict[str, Any]]]
"""Events of the releases behind -> stored results of the mechanism audits that concern them."""


def export_corpus(
    packager: Packager, planned: PlannedMethod, target: Path, hub: HubFacts
) -> TreeHead:
    """Packs a published corpus: rows that passed the release gate, under their own label.

    Raises:
        PrivacyError: Nothing was published, or what lies there is not what the ledger sealed, or an
            attack on these very settings has refuted their claim since.
    """
    published = home().released / packager.spec.name / planned.folder
    if not (published / LABEL_FILE).is_file():
        raise PrivacyError(
            f"Expected a published corpus of {planned.folder!r} in {published}, got none. Run "
            f"`dpsynth run {packager.spec.name}`, which publishes what passes the release gate."
        )
    _refuse_altered(packager, planned, published)
    label = json.loads((published / LABEL_FILE).read_text())
    refuse_refuted(packager.ledger.entries(), label["subject"]["reservation"])
    rows = pl.read_parquet(published / "data")
    return packager.write(
        target,
        folder=planned.folder,
        label=label,
        hub=hub,
        fill=lambda folder: write_corpus(folder, label, rows, hub),
    )


def export_generator(
    packager: Packager,
    planned: PlannedMethod,
    target: Path,
    hub: HubFacts,
    find_audits: FindAudits,
) -> TreeHead:
    """Packs the weights that a method fine-tuned on the records, under a label of their own.

    Raises:
        PrivacyError: The method releases no generator, or has not yet, or an attack on these very
            settings refuted their claim.
    """
    generator = capability(planned.method, ReleasesGenerator)
    if generator is None:
        raise PrivacyError(
            f"Expected a method that releases a generator, got {planned.folder!r}, which releases "
            "a corpus alone. Export that, or name another method."
        )
    asset = f"{packager.spec.name}/{planned.folder}/{FINETUNED_GENERATOR}"
    charge = last_release(packager.ledger, packager.store, asset, packager.spec.account)
    entries = packager.ledger.entries()
    attacks = refuse_refuted(entries, charge.reservation)
    behind = [each.event for each in ChargeGraph(entries).charges_behind(charge.reservation)]
    audits = [*find_audits(behind), *attacks]
    label = corpus_label(entries, charge.reservation, audits, kind=GENERATOR)
    weights = packager.store.files(charge.reservation)
    prompts = generator.prompts(planned.method, weights)
    return packager.write(
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
    graph = ledger.provenance()
    found = [
        each
        for each in graph.charges.values()
        if each.asset == asset and each.cohort == account and ledger.sealed_digest(each.reservation)
    ]
    if not found:
        raise PrivacyError(f"Expected a release of {asset}, got none. Materialise it first.")
    last = max(found, key=lambda each: each.seq)
    sealed_release(ledger, store, last.reservation, asset)
    if (problem := problem_behind(last.reservation, graph, ledger, store)) is not None:
        raise PrivacyError(problem)
    return last


def _refuse_altered(packager: Packager, planned: PlannedMethod, published: Path) -> None:
    """Refuses a published folder that the ledger and the store contradict."""
    ledger, store, spec = packager.ledger, packager.store, packager.spec
    asset = f"{spec.name}/{planned.folder}/{CANDIDATE_CORPUS}"

    def expected(reservation: str) -> pl.DataFrame | None:
        rows = sealed_release(ledger, store, reservation, asset)[1]
        return None if rows is None else published_rows(spec, planned, rows)

    problems = corpus_problems(published, ledger.entries()) or rows_problem(published, expected)
    if problems:
        raise PrivacyError(f"{published}: {'; '.join(problems)}")
