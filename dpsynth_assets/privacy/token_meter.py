"""Counts the private tokens of every batch, so that no batch can draw more than was charged."""

import numpy as np

from dpsynth_assets.privacy.errors import UnaccountedReleaseError, check_at_least


class PrivateTokenMeter:
    """Allows each batch exactly `tokens_per_batch` private tokens.

    The published algorithm tests its counter between texts only, and so overshoots by a text
    (errata B-001.1). Here the selection mechanisms spend from the meter before they look at a
    logit, so r cannot be overrun however the generation loop is written.

    **Source** Amin et al. 2024, Algorithm 1, lines 5, 6 and 16, tested before every token.
    """

    def __init__(self, tokens_per_batch: int, batches: int) -> None:
        """Opens a meter for `batches` batches of `tokens_per_batch` = r tokens each.

        Raises:
            ValueError: If either number is negative.
        """
        check_at_least(0, tokens_per_batch=tokens_per_batch, batches=batches)
        self.tokens_per_batch = int(tokens_per_batch)
        self._spent = np.zeros(int(batches), dtype=np.int64)  # [amin2024 A1:L5]

    @property
    def spent(self) -> np.ndarray:
        """(batches,) int64, private tokens drawn so far."""
        return self._spent.copy()

    @property
    def exhausted(self) -> np.ndarray:
        """(batches,) bool, True where no private token is left."""
        return self._spent >= self.tokens_per_batch

    def spend(self, batch_indices: np.ndarray) -> None:
        """Counts one private token for each listed batch; all or nothing.

        Args:
            batch_indices: (G,) batch indices; an index that comes twice counts twice.

        Raises:
            UnaccountedReleaseError: Before anything is counted, if a batch has no token left or
                does not exist.
        """
        indices = np.asarray(batch_indices, dtype=np.int64).reshape(-1)
        if indices.size and (indices.min() < 0 or indices.max() >= self._spent.size):
            raise UnaccountedReleaseError(
                f"Expected batch indices in [0, {self._spent.size}), got {indices.min()} to "
                f"{indices.max()}. Open the meter for every batch of the plan."
            )
        following = self._spent + np.bincount(indices, minlength=self._spent.size)
        if (following > self.tokens_per_batch).any():  # [amin2024 A1:L6]
            raise UnaccountedReleaseError(
                f"Expected at most {self.tokens_per_batch} private tokens a batch, got one more. "
                "Stop at `exhausted`, or plan more tokens."
            )
        self._spent = following  # [amin2024 A1:L16]
