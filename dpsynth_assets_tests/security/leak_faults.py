"""Resources that fail as software fails in practice: with errors that quote private text."""

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn
from unittest import mock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import polars as pl

    from dpsynth_assets.methods.inputs import PrivateInputs


def quoting(records: "pl.DataFrame") -> NoReturn:
    """Raises an error that quotes private text, chained to another that does."""
    raise ValueError(str(records.to_dicts())) from KeyError(records.to_dict(as_series=False))


class QuotingInputs:
    """What a mechanism was given: fails as soon as its records are used, and quotes them all.

    The error rises from the mechanism's own code, with records on the stack below it.
    """

    def __init__(self, private: "PrivateInputs") -> None:
        self._private = private

    def __getattr__(self, name: str) -> Any:
        """Embeddings, secrets and passes are there."""
        return getattr(self._private, name)

    @property
    def records(self) -> NoReturn:
        """Not there: asking for them raises."""
        quoting(self._private.records)

    def counted(self, count: "Callable[[QuotingInputs], Any]", progress: object = None) -> Any:
        """What only counts records asks for them as well."""
        del progress
        return count(self)


def faulty_store() -> dict[str, Any]:
    """A store whose records break every mechanism, and whose other reads fail with what they read.

    Writing works, and so does reading of what holds no record.
    """
    from dpsynth_assets.orchestration.resources.stores import SensitiveStore

    class FaultySensitiveStore(SensitiveStore):
        """Reads, and fails with what it read."""

        def read_for_release(self, *arguments: Any, **options: Any) -> Any:
            """Inputs that fail inside the mechanism."""
            return QuotingInputs(super().read_for_release(*arguments, **options))

        def read_internal(self, *arguments: Any, **options: Any) -> NoReturn:
            """Raises an error that quotes what an internal step would read."""
            quoting(super().read_internal(*arguments, **options).records)

        def each_for_scoring(self, *arguments: Any, **options: Any) -> NoReturn:
            """Raises an error that quotes the first part that scores are computed from."""
            quoting(next(super().each_for_scoring(*arguments, **options)).records)

    return {"sensitive_store": FaultySensitiveStore()}


@contextmanager
def faulty_parts() -> "Iterator[None]":
    """Workers fail with the records of the part that they were sent to: they read it themselves."""
    from dpsynth_assets.sensitive import part_tasks
    from dpsynth_assets.sensitive.private_files import PrivateFiles

    class QuotingFiles(PrivateFiles):
        def read_table(self, path: Any) -> NoReturn:
            quoting(super().read_table(path))

    files_of = part_tasks.files_of
    with mock.patch.object(part_tasks, "files_of", lambda part: QuotingFiles(files_of(part)._root)):
        yield


def faulty_models() -> dict[str, Any]:
    """Models whose embedder fails with an error that quotes what it was given."""
    from dpsynth_assets.orchestration.resources.stores import Models

    class QuotingEmbedder:
        """An embedder that fails as tokenizers do, with the text that it could not read."""

        made_by: ClassVar[dict[str, str]] = {}

        def embed(
            self, texts: list[str], progress: object = None, *, public: bool = False
        ) -> NoReturn:
            """Raises an error that quotes every text."""
            del progress, public
            raise RuntimeError("cannot tokenize " + " ".join(texts))

    class FaultyModels(Models):
        """Every text embedder fails."""

        def text_embedder(self, manifest: Any) -> Any:
            """An embedder that fails."""
            del manifest
            return QuotingEmbedder()

    return {"models": FaultyModels()}
