"""What a release reads beside the records: public artifacts, and releases before it."""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import polars as pl

from dpsynth_assets.methods.cluster_histogram import CLUSTER_HISTOGRAM, ClusterHistogram
from dpsynth_assets.methods.inputs import PublicInputs, Released
from dpsynth_assets.methods.provenance import Node
from dpsynth_assets.methods.stages import CANDIDATE_CORPUS
from dpsynth_assets.methods.topic_histogram import TOPIC_HISTOGRAM
from dpsynth_assets.privacy.ledger import Ledger
from dpsynth_assets.public_base.inputs import load_public_inputs, public_versions
from dpsynth_assets.public_base.opening import OpenedModels
from dpsynth_assets.releases.sealed import sealed_release
from dpsynth_assets.releases.store import StoredReleases


@dataclass(frozen=True, kw_only=True)
class Reads:
    """What there is to read; a release takes of it what its node names.

    Attributes:
        public: Artifacts of the public base, by name.
        charges: Charge of each release before, by node; of a corpus that a method builds on also
            that of the weights behind it, or once more its own where no weights wrote it.
    """

    public: Mapping[str, Any]
    charges: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Opened:
    """Opens what one release reads beside the records.

    Attributes:
        node: What is released.
        reads: What there is.
        ledger: Where releases before were charged.
        store: Where they lie.
        models: Opens public models.
        release: Name of the release.
    """

    node: Node
    reads: Reads
    ledger: Ledger
    store: StoredReleases
    models: OpenedModels
    release: str

    @property
    def public(self) -> dict[str, Any]:
        """The public artifacts that are read."""
        names = self.node.step.reads
        return {name: value for name, value in self.reads.public.items() if name in names}

    @property
    def identities(self) -> dict[str, str]:
        """Identity of each public artifact and earlier release, for the ledger."""
        return self.node.inputs(public_versions(self.public), self.reads.charges)

    def inputs(self) -> PublicInputs:
        """Opens all of it: public models, and releases as the ledger sealed them.

        Raises:
            LedgerIntegrityError: The ledger has sealed no such release, or the store holds another.
        """
        method, cohort = self.node.part.method, self.node.spec.name
        opened = load_public_inputs(
            self.public,
            self.models,
            method.terms,
            self.node.step.engine,
            salt=f"{cohort}/{self.node.part.folder}/{self.release}",
            seed=zlib.crc32(self.release.encode()),  # Another release writes other rows.
        )
        found = {name: self._released(place)[0] for name, place in self.node.reads.items()}
        clusters, topics = found.get(CLUSTER_HISTOGRAM), found.get(TOPIC_HISTOGRAM)
        charges, corpora, generators = self.reads.charges, {}, {}
        for folder, place in self.node.corpora.items():
            corpus = f"{folder}/{CANDIDATE_CORPUS}"
            corpora[folder] = self._released(corpus)[1]
            if charges[place] != charges[corpus]:
                generators[folder] = self._released(place)[0].folder
        return replace(
            opened,
            released=found,
            cluster_histogram=clusters and ClusterHistogram.model_validate(clusters.facts),
            topic_histogram=None if topics is None else topics.facts,
            corpora=corpora,
            generators=generators,
        )

    def _released(self, place: str) -> tuple[Released, pl.DataFrame]:
        charge, asset = self.reads.charges[place], f"{self.node.spec.name}/{place}"
        facts, rows = sealed_release(self.ledger, self.store, charge, asset)
        released = Released(reservation=charge, facts=facts, folder=self.store.files(charge))
        return released, pl.DataFrame() if rows is None else rows
