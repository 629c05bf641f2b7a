"""Declarations of datasets: one YAML file each, checked before anything is read or spent."""

from dpsynth_assets.datasets.cohort_registry import (
    CohortSpec,
    cohort_name,
    cohorts_of,
    complete_cohort,
    known_cohorts,
    matching_files,
    register_complete,
    registered_part,
    usable_cohorts,
)
from dpsynth_assets.datasets.dataset_sections import (
    LABEL_SEPARATOR,
    HistogramSpec,
    MethodSpec,
    ScheduleSpec,
    SourceSpec,
    TopicHistogramSpec,
)
from dpsynth_assets.datasets.evaluation_section import EncoderSpec
from dpsynth_assets.datasets.fields import DatasetFileError, Problem, suggest
from dpsynth_assets.datasets.files import (
    DatasetFile,
    dataset_folders,
    parse_dataset_file,
    repeated_names,
)
from dpsynth_assets.datasets.private_spec import PrivateDatasetSpec
from dpsynth_assets.datasets.public_spec import (
    LanguageModelSpec,
    PublicDataSpec,
    PublicSource,
    TextEmbedderSpec,
)
from dpsynth_assets.datasets.standing import Standing, standing, unknown_bases
from dpsynth_assets.datasets.template import dataset_template
