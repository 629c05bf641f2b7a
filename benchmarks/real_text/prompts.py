"""Prompts compared on public text: a form and a number of examples a row of the table.

    python benchmarks/real_text/prompts.py --corpora brown abc_news

Every text is public: examples come from the corpus itself, and what is written is scored against
other texts of it, cut to as many tokens. SmolLM2 writes with the exact decoder at temperature 1
among the 100 likeliest tokens, as one would without privacy. Nothing is charged.
"""

import argparse
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
from cohorts import real_data

from dpsynth_assets.datasets.public_spec import EngineSpec
from dpsynth_assets.metrics.embedding_distances import MauveSettings, energy_distance, mauve_score
from dpsynth_assets.models.engines.protocol import Engine, Provenance, Sampling, open_engine
from dpsynth_assets.models.language_model import LanguageModel, load_language_model
from dpsynth_assets.models.prompt_templates import (
    TOP_K,
    PromptedModel,
    PromptTemplates,
    default_templates,
)
from dpsynth_assets.models.text_embedder import TextEmbedder
from dpsynth_assets.public_base.making import packaged_model

MAX_TOKENS = 72
SHORTEST = 60
"""Characters of a text that is used."""

CORPORA = {
    "brown": ("Passages from American books and newspapers of 1961", {
        "news": "newspaper report", "romance": "romance novel", "government": "government document",
        "hobbies": "hobby magazine", "mystery": "mystery novel", "religion": "religious essay"}),
    "abc_news": ("ABC news reports", {"rural": "rural news", "science": "science news"}),
    "yelp_reviews": ("Yelp reviews of local businesses", {
        "1": "one-star review", "2": "two-star review", "3": "three-star review",
        "4": "four-star review", "5": "five-star review"}),
    "ag_news": ("Short news reports of press agencies", {
        "World": "world news", "Business": "business news", "Sports": "sports news",
        "Sci/Tech": "science and technology news"}),
}  # fmt: skip
"""Domain of each corpus, and the words of its labels."""

LABELS = {"yelp_reviews": "stars", "ag_news": "topic"}
"""Columns of the labels; of the other corpora: category."""


def forms(domain: str) -> dict[str, PromptTemplates]:
    """The forms by name."""
    plain = PromptTemplates(private=f"{domain}\n\n{{examples}}\n\n", public=f"{domain}\n\n")
    start, end = "<|im_start|>", "<|im_end|>"
    ask = f"{start}user\nWrite one text. {domain}: {{label}}{end}\n{start}assistant\n"
    system = f"{start}system\nYou write {domain}.{end}\n"
    return {
        "asked, quotation marks, end of line": default_templates(domain, labelled=True),
        "quotation marks, end of line": default_templates(domain, labelled=True, asks=False),
        "quotation marks alone": replace(
            plain, example='{label}: "{example}"', response_start='{label}: "', end='"'
        ),
        "label on a line, end of line": replace(
            plain, example="{label}:\n{example}", response_start="{label}:\n", end="\n"
        ),
        "fence": replace(
            plain,
            example="{label}\n```\n{example}\n```",
            response_start="{label}\n```\n",
            end="```",
        ),
        "chat, one turn": PromptTemplates(
            private=f"Here are examples of {domain} ({{label}}):\n\n{{examples}}\n\n"
            "Write one more, different from them. Answer with the text alone.",
            example='"{example}"',
            public=f"Write an example of {domain} ({{label}}). Answer with the text alone.",
            use_chat_template=True,
            response_start='"',
            text_end='"',
            end=end,
        ),
        "chat, a turn each": PromptTemplates(
            private=f"{system}{{examples}}\n",
            example=f"{ask}{{example}}{end}",
            separator="\n",
            public=system,
            response_start=ask,
            end=end,
        ),
    }


def texts_of(name: str, model: LanguageModel, count: int) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Two disjoint samples: texts that score, and texts that stand in prompts; one line each."""
    label = pl.col(LABELS.get(name, "category")).cast(pl.String)
    label = label.replace_strict(CORPORA[name][1], default=None)
    found = pl.read_parquet(real_data() / f"{name}.parquet").select("text", label.alias("label"))
    found = found.drop_nulls().filter(pl.col("text").str.len_chars() > SHORTEST)
    found = found.sample(3 * count, shuffle=True, seed=0)
    cut = [
        model.decode(model.encode(" ".join(text.split()))[:MAX_TOKENS]) for text in found["text"]
    ]
    found = found.with_columns(pl.Series("text", cut).str.strip_chars())
    return found[:count], found[count:]


def written(
    model: Any, engine: Engine, pool: pl.DataFrame, labels: list[str], examples: int, ends: bool
) -> list[str]:
    """A text of each label after public examples of the same label."""
    draw = np.random.default_rng(examples)
    texts = {key[0]: part["text"].to_list() for key, part in pool.group_by("label")}
    prompts = []
    for label in labels:
        places = draw.choice(len(texts[label]), examples, replace=False)
        shown = [texts[label][place] for place in places]
        prompts.append(model.prompt_ids(label, shown, MAX_TOKENS))
    end = model.tokenizer.decode([model.end_token_id])
    sampling = Sampling(
        temperature=1.0,
        top_k=TOP_K,
        max_new_tokens=MAX_TOKENS,
        seed=1,
        stop=(end,) if ends else (),
    )
    made = engine.generate(prompts, sampling, provenance=Provenance.PUBLIC)
    return [model.read_text(list(each.token_ids))[0] or "empty" for each in made]


def main() -> None:
    """Prints the table."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--corpora", nargs="+", default=list(CORPORA), choices=list(CORPORA))
    options.add_argument("--rows", type=int, default=160)
    options.add_argument("--examples", nargs="+", type=int, default=[0, 1, 2])
    chosen = options.parse_args()
    language_model = load_language_model(packaged_model())
    engine = open_engine(EngineSpec(kind="exact"), language_model=language_model)
    embedder, settings = TextEmbedder(), MauveSettings(max_rows=chosen.rows, repeats=3)
    print(
        "| corpus | form | examples | MAUVE | energy distance | words |\n|---|---|---|---|---|---|"
    )
    for name in chosen.corpora:
        real, pool = texts_of(name, language_model, 2 * chosen.rows)
        features = embedder.embed(real["text"].to_list(), public=True)
        for form, templates in forms(CORPORA[name][0]).items():
            model = PromptedModel(language_model, templates)
            for examples in chosen.examples:
                labels = real["label"].to_list()[: chosen.rows]
                ends = not templates.end.startswith("<|")
                texts = written(model, engine, pool, labels, examples, ends)
                own = embedder.embed(texts, public=True)
                mauve = mauve_score(features, own, settings).value
                energy = float(energy_distance(own, features))
                words = float(np.mean([len(text.split()) for text in texts]))
                print(
                    f"| {name} | {form} | {examples} | {mauve:.2f} | {energy:.3f} | {words:.0f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
