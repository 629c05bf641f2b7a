"""Public documents of a base that has none: written once by its language model, and kept."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from dpsynth_assets.datasets import PublicDataSpec
from dpsynth_assets.datasets.engine import EngineSpec
from dpsynth_assets.files.identity import version_of
from dpsynth_assets.files.shared_models import made_folder
from dpsynth_assets.public_base.making import Report
from dpsynth_assets.public_base.opening import OpenedModels

_FILE = "documents.parquet"


def invented_documents(
    spec: PublicDataSpec, manifest: Mapping[str, Any], models: OpenedModels, report: Report
) -> pl.DataFrame:
    """Writes the documents of a domain, or reads those that an earlier run wrote.

    Args:
        spec: A base with a domain and without a source.
        manifest: What describes its language model.
        models: Opens it.
        report: Called with the share done in [0, 1] and a short message.

    Returns:
        Columns `text` and `label`; what was written once is read again wherever models are shared.
    """
    from dpsynth_assets.models.invented_text import CODE_VERSION, invent_documents
    from dpsynth_assets.models.prompt_templates import default_templates

    model_name = str(manifest["path"]).rstrip("/").rsplit("/", maxsplit=1)[-1]
    engine = EngineSpec(kind=spec.language_model.writes_by)
    templates = default_templates(
        spec.domain,
        labelled=bool(spec.invented.labels),
        asks=spec.language_model.use_chat_template,
    )
    written_by = (templates.to_json(), spec.invented, model_name, engine.kind)
    version = version_of("invented", CODE_VERSION, *written_by)

    def invent(whole: Path) -> None:
        language_model = models.language_model(manifest)
        invent_documents(
            models.engine(engine, language_model),
            language_model,
            templates=templates,
            **spec.invented.model_dump(),
            report=report,
        ).write_parquet(whole / _FILE)

    folder = made_folder(spec.name, "invented_documents", version, invent)
    found = pl.read_parquet(folder / _FILE)
    return found if spec.max_documents is None else found.head(spec.max_documents)
