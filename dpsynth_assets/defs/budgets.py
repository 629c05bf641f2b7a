"""The asset that belongs to no dataset: the budgets of all of them."""

import dagster as dg


@dg.definitions
def budgets() -> dg.Definitions:
    """All budgets of the installation on one page, and their check."""
    from dpsynth_assets.orchestration.assets.privacy_budgets import budget_definitions

    return budget_definitions()
