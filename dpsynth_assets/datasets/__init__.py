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
from dpsynth_assets.datasets.cohort_windows import CohortsSpec, Window
from dpsynth_assets.datasets.dataset_sections import (
    LABEL_SEPARATOR,
    BudgetSpec,
    ColumnsSpec,
    HistogramSpec,
    MethodSpec,
    PrivacyUnitSpec,
    PublicFactsSpec,
    ScheduleSpec,
    SourceSpec,
    TopicHistogramSpec,
)
from dpsynth_assets.datasets.evaluation_section import EncoderSpec, EvaluationSpec, MauveSpec
from dpsynth_assets.datasets.fields import DatasetFileError, Problem, suggest
from dpsynth_assets.datasets.files import (
    DatasetFile,
    dataset_folders,
    find_dataset_files,
    parse_dataset_file,
    render_environment,
    repeated_names,
    resolve_paths,
)
from dpsynth_assets.datasets.private_spec import PrivateDatasetSpec
from dpsynth_assets.datasets.public_spec import (
    ClustersSpec,
    InventedTextSpec,
    LanguageModelSpec,
    PublicColumns,
    PublicDataSpec,
    PublicSource,
    TextEmbedderSpec,
)
from dpsynth_assets.datasets.standing import Standing, standing, unknown_bases
from dpsynth_assets.datasets.template import dataset_template
