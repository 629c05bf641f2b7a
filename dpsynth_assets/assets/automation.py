"""Automation of what follows new releases: post-processing, and nothing that spends."""

import dagster as dg

FOLLOWS_RELEASES = (
    dg.AutomationCondition.eager() & dg.AutomationCondition.all_deps_blocking_checks_passed()
).with_label("follows new releases")
"""Made anew when something it is made from was, once all of that is there and its checks passed.

Only for what charges nothing: corpora from paid stages, published corpora and their cards, scores,
pictures, statements. `lineage` refuses it on a mechanism. It acts while the sensor of
`defs/sensors.py` is switched on.
"""
