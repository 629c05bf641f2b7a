"""Records: read from any declared source into four canonical string columns."""

from dpsynth_assets.records.checking import check_dataset_file
from dpsynth_assets.records.columns import SourceError
from dpsynth_assets.records.reading import canonical_frame, canonical_record_id, read_public_records
