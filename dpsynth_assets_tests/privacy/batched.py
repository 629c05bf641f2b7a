"""Mechanisms made from one flat list of settings, as tests vary them."""

from dataclasses import fields

from dpsynth_assets.privacy.batch_terms import BatchTerms

TERMS = {field.name for field in fields(BatchTerms)}


def batched(kind, **settings):
    """Makes a mechanism of `kind` whose `batch` holds those of the settings that it knows."""
    terms = {name: settings.pop(name) for name in TERMS & set(settings)}
    return kind(batch=BatchTerms(**terms), **settings)
