"""Mechanisms made from one flat list of settings, as tests vary them, and batches for them."""

from dataclasses import fields

import torch

from dpsynth_assets.privacy.batch_terms import BatchTerms
from dpsynth_assets.privacy.guarantees import NeighboringRelation

VOCABULARY = 257
TERMS = {field.name for field in fields(BatchTerms)}


class Unread:
    """Private data that may not be read yet."""

    def __getattr__(self, name):
        raise AssertionError("private data was read before it was paid for")


def batched(kind, **settings):
    """Makes a mechanism of `kind` whose `batch` holds those of the settings that it knows.

    The relation is add-remove unless another is given.
    """
    settings = {"relation": NeighboringRelation.ADD_REMOVE} | settings
    terms = {name: settings.pop(name) for name in TERMS & set(settings)}
    return kind(batch=BatchTerms(**terms), **settings)


def batches():
    """Logits of 20 rows, public ones of 6 batches, and the batch of each row; batch 2 is empty."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(20, VOCABULARY, generator=generator) * 6
    public = torch.randn(6, VOCABULARY, generator=generator) * 6
    batch_of_row = torch.randint(0, 6, (20,), generator=generator)
    batch_of_row[batch_of_row == 2] = 3
    return logits, public, batch_of_row
