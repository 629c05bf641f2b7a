"""Public bases by name, as dataset files declare them."""

from functools import lru_cache
from pathlib import Path

from dpsynth_assets.datasets.files import dataset_folders, find_dataset_files, parse_dataset_file
from dpsynth_assets.datasets.public_spec import PublicDataSpec


def declared_base(name: str) -> PublicDataSpec | None:
    """Finds the public base of this name below the folders of dataset files.

    Plans read it whenever the UI opens, so a file is parsed once for as long as it stays the same.

    Args:
        name: What `public_data` of a private dataset says.

    Returns:
        Its declaration; None where no file that can be read declares it.
    """
    folders = [folder for folder in dataset_folders() if folder.is_dir()]
    for path in find_dataset_files(folders):
        state = path.stat()
        for base in _bases(path, state.st_mtime_ns, state.st_size):
            if base.name == name:
                return base
    return None


@lru_cache(maxsize=1024)
def _bases(path: Path, changed: int, size: int) -> tuple[PublicDataSpec, ...]:
    """The public bases of one file, while its time of change and its size stay what they are."""
    del changed, size
    files, _ = parse_dataset_file(path, foreign_ok=True)
    return tuple(file.spec for file in files if isinstance(file.spec, PublicDataSpec))
