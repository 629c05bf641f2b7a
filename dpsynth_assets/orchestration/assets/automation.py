"""Automation of what follows new releases: post-processing, and nothing that spends."""

import dagster as dg

from dpsynth_assets.orchestration.assets.replaced_ops import with_attributes
from dpsynth_assets.orchestration.dagster_internals import replaced_record

FOLLOWS_RELEASES = (
    dg.AutomationCondition.eager() & dg.AutomationCondition.all_deps_blocking_checks_passed()
).with_label("follows new releases")
"""Made anew when something it is made from was, once all of that is there and its checks passed.

Only for what charges nothing: corpora from paid stages, published corpora and their cards, scores,
pictures, statements. `lineage` refuses it on a mechanism. It acts while the sensor of
`defs/sensors.py` is switched on.
"""


def with_followed_checks(definitions: dg.Definitions) -> dg.Definitions:
    """The same definitions, whose checks are taken whenever their asset was made without them.

    A follow run that makes an asset takes its checks in the same run, and what is below waits for
    them. A check that reads private text to decide is asked for by a person alone.
    """
    parts = [
        each for each in definitions.asset_checks or () if isinstance(each, dg.AssetsDefinition)
    ]
    return replaced_record(definitions, asset_checks=[_followed(each) for each in parts])


def _followed(part: dg.AssetsDefinition) -> dg.AssetsDefinition:
    specs = part.get_attributes_dict()["check_specs_by_output_name"]
    return with_attributes(
        part, check_specs_by_output_name={name: _follows(spec) for name, spec in specs.items()}
    )


def _follows(spec: dg.AssetCheckSpec) -> dg.AssetCheckSpec:
    # Attacks that a check waits for may never be made: it is taken without them.
    own = dg.AutomationCondition.eager().allow(dg.AssetSelection.assets(spec.asset_key))
    return replaced_record(spec, automation_condition=own.with_label("follows its asset"))
