"""Dataset files that read the same records: they need one account, and the terms of its owner.

What can be told from declarations alone. Copies of a source under other paths are told by
fingerprints of their texts when records are read (`resources/fingerprints.py`).
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from dpsynth_assets.datasets.files import DatasetFile
from dpsynth_assets.datasets.private_spec import PrivateDatasetSpec
from dpsynth_assets.datasets.problems import Problem, suggest

_TERMS = {
    "budget.epsilon": lambda spec: spec.budget.epsilon,
    "budget.delta": lambda spec: spec.budget.delta,
    "budget.accountant": lambda spec: spec.budget.accountant,
    "neighboring_relation": lambda spec: str(spec.neighboring_relation),
    "privacy_unit": lambda spec: spec.unit.describe(),
}
"""Fields that files over one account have in common: composition assumes it."""


def shared_record_problems(
    files: Sequence[DatasetFile], declared: Sequence[DatasetFile] = ()
) -> list[Problem]:
    """Checks files against each other and against all others that are declared. Reads no record.

    Args:
        files: Files whose problems are wanted.
        declared: Further files they are compared with; those in `files` may be among them.

    Returns:
        A problem for each file that reads another's source, or shares an account on other terms.
    """
    known = {(file.path.resolve(), file.spec.name): file for file in (*declared, *files)}
    others = [file for file in known.values() if isinstance(file.spec, PrivateDatasetSpec)]
    problems: list[Problem] = []
    for file in files:
        if not isinstance(file.spec, PrivateDatasetSpec):
            continue
        if file.spec.shares_records_with is not None:
            problems += _of_account(file, file.spec, others)
        problems += _of_source(file, file.spec, others)
    return problems


def _of_account(
    file: DatasetFile, spec: PrivateDatasetSpec, others: Sequence[DatasetFile]
) -> Iterator[Problem]:
    owners = {other.spec.name: other.spec for other in others if other.spec.name != spec.name}
    owner = owners.get(spec.account)
    field = "shares_records_with"
    if not isinstance(owner, PrivateDatasetSpec):
        expected, got = "the name of a declared private dataset", repr(spec.account)
        yield _problem(file, field, expected, got, suggest(spec.account, sorted(owners)))
        return
    if owner.account != owner.name or owner.cohorts is not None:
        what = (
            "is partitioned into cohorts" if owner.cohorts else f"shares those of {owner.account!r}"
        )
        remedy = "Name the dataset that owns the account; one that is partitioned cannot be shared."
        yield _problem(
            file, field, "a dataset with one account of its own", f"{owner.name!r}, which {what}",
            remedy,
        )  # fmt: skip
        return
    for name, read in _TERMS.items():
        mine, theirs = read(spec), read(owner)
        if mine != theirs:
            remedy = "Both charge one account: write the same in both files."
            yield _problem(file, name, f"{theirs}, as {owner.name!r} has it", f"{mine}", remedy)


def _of_source(
    file: DatasetFile, spec: PrivateDatasetSpec, others: Sequence[DatasetFile]
) -> Iterator[Problem]:
    mine = source_places(spec.source.path)
    for other in others:
        if not isinstance(other.spec, PrivateDatasetSpec) or other.spec.name == spec.name:
            continue
        if other.spec.account != spec.account and mine & source_places(other.spec.source.path):
            yield _problem(
                file,
                "source.path",
                "records that no other account pays for",
                f"{spec.source.path}, which {other.spec.name!r} ({other.path}) reads",
                f"Write shares_records_with: {other.spec.account} so that both spend one budget, "
                "or name another source.",
            )
            return


def source_places(path: str) -> set[str]:
    """The files that a path names, by their real places; the path itself where there are none."""
    if "://" in path:
        return {path}
    given = Path(path)
    found = [each for each in given.parent.glob(given.name) if each.exists()]
    return {str(each.resolve()) for each in found} or {str(given.resolve())}


def _problem(file: DatasetFile, field: str, expected: str, got: str, remedy: str) -> Problem:
    return Problem(file=str(file.path), field=field, expected=expected, got=got, remedy=remedy)
