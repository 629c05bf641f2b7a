"""The contract of a method stays small, and no reader knows a method's class or fields."""

import re
from pathlib import Path

import pytest

from dpsynth_assets.methods.base import Method, Staged
from dpsynth_assets.methods.registry import REGISTRY, check_settings

PRODUCT = Path(__file__).parents[2] / "dpsynth_assets"
ASKS_A_CLASS = re.compile(
    r"isinstance\((\w+\.)*method\b|\b(get|has)attr\((self\.|\w+\.)*(config|method),"
    r"(?!.*(max_position_embeddings|rope_parameters))"  # Those of weights.
)
OF_MODELS = "models"
"""Folder where `config` is the configuration of weights."""


def test_the_contract_has_at_most_fourteen_members_beside_what_a_method_may_leave_out():
    members = {name for kind in (Staged, Method) for name in {*vars(kind), *kind.__annotations__}}
    public = {name for name in members if not name.startswith("_")} | {"config", "terms"}
    optional = {name for name in public if getattr(Method, name, ...) in (None, False)}
    assert len(public - optional) <= 14, sorted(public - optional)
    assert len(optional) <= 9, sorted(optional)


def test_nobody_asks_for_a_class_or_for_a_field_by_name():
    asking = [
        f"{file.relative_to(PRODUCT)}: {line.strip()}"
        for file in PRODUCT.rglob("*.py")
        if file.relative_to(PRODUCT).parts[0] != OF_MODELS
        for line in file.read_text().splitlines()
        if ASKS_A_CLASS.search(line)
    ]
    assert not asking


@pytest.mark.parametrize("name", REGISTRY)
def test_a_former_setting_is_no_field_and_is_refused_in_one_line_with_a_remedy(name):
    config = REGISTRY[name].config_type
    assert not config.constants.keys() & config.model_fields.keys()
    for setting, value in config.constants.items():
        (problem,) = check_settings(name, {setting: value})
        assert problem.field == setting
        assert problem.remedy.startswith("It was removed")
        assert problem.remedy.endswith("Drop it.")
        assert "\n" not in str(problem)
