"""Public incidence: which record holds which secret, where declared public, and its sampling.

Only then may records be drawn in dependence on secrets (errata B-004.7): the linear program gives
a record more weight the fewer secrets it shares with others.
"""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import polars as pl

from dpsynth_assets.datasets.secrets import SecretsSpec
from dpsynth_assets.privacy.secret_noise import (
    SecretSampling,
    sampling_probabilities,
    secret_weights,
)
from dpsynth_assets.privacy.secret_protection import gaussian_budget
from dpsynth_assets.records.record_filters import canonical_id

COLUMNS = ("record_id", "secret", "kind")


class IncidenceError(ValueError):
    """A declared incidence cannot be used: one line, expected, got, remedy."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PublicIncidence:
    """Records that hold secrets, all of it public.

    Attributes:
        record_ids: N listed records.
        records_of_secret: For each of S secrets, its records, by place among `record_ids`.
        kinds: For each secret, its kind.
    """

    record_ids: tuple[str, ...] = field(repr=False)
    records_of_secret: tuple[np.ndarray, ...] = field(repr=False)
    kinds: tuple[str, ...] = field(repr=False)


def read_public_incidence(promise: SecretsSpec) -> PublicIncidence:
    """Reads the declared file and checks it against the declared kinds and caps.

    Raises:
        IncidenceError: There is no such file, it lacks a column, or it contradicts the declaration.
    """
    path = Path(str(promise.public_incidence)).expanduser()
    if not path.is_file():
        raise IncidenceError(f"Expected a Parquet file of public incidence, got none at {path}.")
    table = pl.read_parquet(path)
    if missing := [name for name in COLUMNS if name not in table.columns]:
        raise IncidenceError(f"Expected columns {', '.join(COLUMNS)} in {path}, got no {missing}.")
    table = table.select(pl.col(name).cast(pl.String) for name in COLUMNS)
    table = table.with_columns(canonical_id(pl.col("record_id"))).unique()
    if table["record_id"].null_count():
        raise IncidenceError(f"Expected ids in column record_id of {path}, got a blank one.")
    known = {kind.name: kind.max_records for kind in promise.kinds}
    ids = table["record_id"].unique().sort()
    place = pl.DataFrame({"record_id": ids, "place": np.arange(len(ids))})
    held = (
        table.join(place, on="record_id")
        .group_by("kind", "secret")
        .agg(pl.col("place").sort())
        .sort("kind", "secret")
    )
    for kind, rows in zip(held["kind"], held["place"], strict=True):
        if len(rows) > known.get(kind, 0):
            raise IncidenceError(
                f"Expected secrets of declared kinds within their max_records, got one of kind "
                f"{kind!r} in {len(rows)} records in {path}. Declare the kind, or raise its cap."
            )
    return PublicIncidence(
        record_ids=tuple(ids),
        records_of_secret=tuple(rows.to_numpy() for rows in held["place"]),
        kinds=tuple(held["kind"]),
    )


def solved_sampling(incidence: PublicIncidence, promise: SecretsSpec) -> SecretSampling:
    """Solves the linear program: probabilities of the N listed records, and the dominating law.

    **Source** SecPE, Algorithm 1, lines 3 and 4, with ρ_i = w_i / max w (errata B-004.5).
    """
    bounds = {kind.name: (kind.prior, kind.posterior) for kind in promise.kinds}
    capacities = [gaussian_budget(*bounds[kind]) for kind in incidence.kinds]
    rows = incidence.records_of_secret
    weights = secret_weights(rows, capacities, len(incidence.record_ids))
    return SecretSampling.from_public_incidence(sampling_probabilities(weights), rows)


def aligned_probabilities(
    incidence: PublicIncidence, sampling: SecretSampling, record_ids: list[str]
) -> np.ndarray:
    """Probabilities of the given records; records that hold no secret always take part.

    Both are canonical ids, and every listed one was found among the records when these were read.

    Raises:
        IncidenceError: If an id occurs twice: the law would not count its second record.
    """
    if len(set(record_ids)) != len(record_ids):
        raise IncidenceError("Expected records with ids of their own. Name columns.id.")
    chances = np.broadcast_to(np.asarray(sampling.probabilities), (len(incidence.record_ids),))
    known = dict(zip(incidence.record_ids, chances.tolist(), strict=True))
    return np.array([known.get(one, 1.0) for one in record_ids], dtype=np.float64)
