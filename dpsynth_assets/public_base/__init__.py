"""Public bases, without Dagster: documents, models made from them, and how stages read them."""

from dpsynth_assets.public_base.base import PublicBase

__all__ = ["PublicBase"]
