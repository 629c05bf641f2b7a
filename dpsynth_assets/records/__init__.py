"""Records: read from any declared source into four canonical string columns."""

from dpsynth_assets.records.checking import MethodChecker, check_dataset_file
from dpsynth_assets.records.columns import SourceError
from dpsynth_assets.records.reading import (
    PrivateRecords,
    canonical_frame,
    canonical_record_id,
    read_public_records,
)
from dpsynth_assets.records.record_filters import CANONICAL, Rule
