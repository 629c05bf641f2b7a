"""The records that paid releases read, by keyed digest: whether they were replaced since.

A release is found again by its declaration, in which `source.version` stands for the records. Other
records under the same version would be answered by releases over the first ones, or add to a corpus
half of which rests on the first ones. So the digest of a cohort's source rows
(`records/source_digest.py`) is kept once a paid release has read them, and the rows are compared
whenever they are read again. Before the first payment nothing rests on them: they may be replaced.

The digests lie beside the fingerprints, under their key. Who removes the sensitive store removes
both, and the next reading is the first.

**Privacy** What is said, and to the steward alone, is that the records differ; never in what.
"""

import json
from collections.abc import Callable

from dpsynth_assets.paths import Folder
from dpsynth_assets.resources.fingerprints import FOLDER, store_key
from dpsynth_assets.resources.private_files import PrivateFiles


class ReadRecords:
    """Digests of the records that each cohort of a store was read with."""

    def __init__(self, files: PrivateFiles, base: Folder) -> None:
        """Names the sensitive store's folder."""
        self._files, self._base = files, base

    def differ(self, cohort: str, state: str, digest: Callable[[bytes], str]) -> bool:
        """Says whether a paid release read other records under the same state.

        Args:
            cohort: Whose records they are.
            state: Public name of their state (`declared_state`).
            digest: Computes their digest from the key; not called where nothing was paid for.
        """
        paid = self._paid(cohort, state)
        if not self._files.exists(paid):
            return False
        return self._files.read(paid).decode() != digest(self._key())

    def note_read(self, cohort: str, state: str, digest: Callable[[bytes], str]) -> None:
        """Notes which records of a cohort were read last: those that the next release pays for."""
        content = json.dumps([state, digest(self._key())]).encode()
        self._files.write(self._last(cohort), lambda file: file.write(content))

    def forget_read(self, cohort: str) -> None:
        """Forgets the last reading, before other records take the place of what it stored."""
        self._files.remove(self._last(cohort))

    def note_paid(self, cohort: str) -> None:
        """Keeps the digest of the last reading for good: a paid release reads those records."""
        if not self._files.exists(self._last(cohort)):
            return  # They were read before digests were kept.
        state, digest = json.loads(self._files.read(self._last(cohort)))
        self._files.write(
            self._paid(cohort, state),
            lambda file: file.write(digest.encode()),
            only_if_absent=True,
        )

    def _key(self) -> bytes:
        return store_key(self._files, self._base)

    def _last(self, cohort: str) -> Folder:
        return self._base / FOLDER / f"{cohort}.read"

    def _paid(self, cohort: str, state: str) -> Folder:
        return self._base / FOLDER / f"{cohort}.{state}.rows"
