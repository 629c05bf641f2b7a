"""Default prompts of pretrained models: what the texts are, a label, and a text in quotation marks.

They are templates like declared ones, made from a public base's `domain` and the words of labels. A
text stands on one line between quotation marks and the line's end closes it: a quotation mark alone
would not, because tokenizers join it to the full stop before it. How other forms compare on public
text is in docs/methods.md.
"""

from dpsynth_assets.models.prompt_templates import PromptTemplates

TOP_K = 100
"""Likeliest tokens that a text is drawn from where no privacy mechanism draws it."""


def default_templates(domain: str, *, labelled: bool) -> PromptTemplates:
    """Writes the prompts of a domain.

    Args:
        domain: What the texts are, in a few public words.
        labelled: Whether texts have a label, which then stands before each of them.

    Returns:
        Templates for a plain or an instruction-tuned model; a prompt is the domain, k texts and the
        opening of one more.

    **Source** Amin et al. 2025, appendix E.4: one template for all datasets, label and text of each
    example, for pretrained models without instructions.
    """
    opening = '{label}: "' if labelled else '"'
    return PromptTemplates(
        private=f"{domain}\n\n{{examples}}\n\n",
        example=f'{opening}{{example}}"',
        public=f"{domain}\n\n",
        response_start=opening,
        text_end='"',
        end="\n",
    )
