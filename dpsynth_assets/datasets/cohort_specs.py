"""The declaration of one cohort of a partitioned dataset: its file's, with a part of the source."""

from pathlib import Path

from dpsynth_assets.datasets.cohort_registry import known_cohorts
from dpsynth_assets.datasets.cohort_windows import Window
from dpsynth_assets.datasets.fields import Declaration
from dpsynth_assets.datasets.private_spec import PrivateDatasetSpec


class CohortPart(Declaration):
    """The part of a dataset that a cohort is.

    Attributes:
        dataset: The dataset whose file declares it.
        key: Its place among the cohorts, e.g. "2026_01".
        rule: How the dataset is partitioned, in words.
        window: Its records by date; None where it is one whole file.
    """

    dataset: str
    key: str
    rule: str
    window: Window | None = None


class CohortSpec(PrivateDatasetSpec):
    """One cohort of a partitioned dataset. No file can declare it: it follows from the rule."""

    part: CohortPart

    @classmethod
    def of(cls, spec: PrivateDatasetSpec, key: str) -> "CohortSpec":
        """The cohort `key` of a dataset that declares `cohorts`.

        The parts of the declaration were validated with the file, so nothing is validated again.
        """
        rule = spec.cohorts
        if rule is None:
            raise ValueError(f"Expected a dataset that declares cohorts, got {spec.name!r}.")
        fields = {name: getattr(spec, name) for name in PrivateDatasetSpec.model_fields}
        fields |= {"name": f"{spec.name}_{key}", "cohorts": None}
        if rule.by == "file":
            path = Path(spec.source.path).parent / rule.file_name(key)
            fields["source"] = spec.source.model_copy(update={"path": str(path)})
        window = rule.window(key) if rule.by == "window" else None
        part = CohortPart(dataset=spec.name, key=key, rule=rule.rule, window=window)
        return cls.model_construct({*spec.model_fields_set, "part"}, **fields, part=part)

    @property
    def dataset(self) -> str:
        """The dataset whose cohorts compose in parallel."""
        return self.part.dataset

    @property
    def partition(self) -> str | None:
        """The rule that partitions the dataset."""
        return self.part.rule

    @property
    def window(self) -> Window | None:
        """The cohort's records by date."""
        return self.part.window


def cohorts_of(spec: PrivateDatasetSpec) -> list[PrivateDatasetSpec]:
    """The known cohorts of a declaration, in order; itself where it is not partitioned."""
    if spec.cohorts is None:
        return [spec]
    return [CohortSpec.of(spec, key) for key in known_cohorts(spec.name)]
