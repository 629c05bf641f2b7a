"""Fixtures of the asset tests."""

from dpsynth_assets_tests.object_stores import bucket, s3_address

__all__ = ["bucket", "s3_address"]
