"""Addresses in the web UI: of a cohort's assets, and of pages that were written for it."""

from dpsynth_assets.datasets import registered_part

PAGES = "/pages"
"""Below it the web server shows written pages."""


def page_address(place: str, *names: str) -> str:
    """Path of a written page.

    Args:
        place: `released` or `reports`.
        names: Its folders and its file below that.
    """
    return "/".join((PAGES, place, *names))


def asset_address(asset: str) -> str:
    """Path of an asset's page, or of the folder of a cohort's assets.

    Args:
        asset: Parts joined by `/`, the cohort's name first, as in the ledger. Where the cohort is
            one of a partitioned dataset, the page is the dataset's, at the cohort's partition.
    """
    cohort, slash, rest = asset.partition("/")
    dataset, partition = registered_part(cohort)
    chosen = f"?view=partitions&partition={partition}" if partition is not None and rest else ""
    return f"/assets/{dataset}{slash}{rest}{chosen}"
