"""The folder of definitions, loaded by Dagster, where a broken dataset file harms itself alone."""

from functools import partial
from pathlib import Path

from dagster.components.core.component_tree import ComponentTree
from dagster.components.core.context import ComponentDeclLoadContext
from dagster.components.core.decl import (
    ComponentDecl,
    ComponentLoaderDecl,
    DefsFolderDecl,
    build_filesystem_component_decl_from_context,
)
from dagster.components.core.defs_module import ComponentPath, find_defs_or_component_yaml

from dpsynth_assets.datasets import dataset_folders, standing
from dpsynth_assets.datasets.standing import Standing
from dpsynth_assets.orchestration.components.declared import file_definitions
from dpsynth_assets.orchestration.components.refused import RefusedFile


class DatasetTree(ComponentTree):
    """Dagster's tree of components; a refused dataset file is replaced by what says why.

    Dagster itself stops at the first file that it cannot read, and loads nothing.
    """

    def _get_filesystem_decl(self) -> ComponentDecl:
        """The declarations below the folder, read once."""
        place = ComponentPath.from_path(self.defs_module_path)
        known: ComponentDecl | None = self.state_tracker.get_cache_data(place).component_decl
        if known is None:
            found = standing([self.defs_module_path, *dataset_folders()[1:]])
            context = self.decl_load_context.for_component_loc(place)
            known = _declaration(context, found)
            if known is None:
                raise ValueError(f"Expected definitions in {self.defs_module_path}, got none.")
            self.state_tracker.set_cache_data(place, component_decl=known)
        return known


def _declaration(context: ComponentDeclLoadContext, found: Standing) -> ComponentDecl | None:
    """The declaration of a file or a folder; a folder is descended into here, not by Dagster."""
    path = context.path
    own = find_defs_or_component_yaml(path)
    if own is not None and own.resolve() in found.refused:
        return _replaced(context, own.resolve(), found)
    if own is not None or not path.is_dir():
        return build_filesystem_component_decl_from_context(context)
    children = {}
    for child in sorted(path.iterdir()):
        if child.name == "__pycache__" or child.name.startswith("."):
            continue
        inner = context.for_component_loc(ComponentPath.from_path(child))
        if (declared := _declaration(inner, found)) is not None:
            children[child] = declared
    if not children:
        return None
    return DefsFolderDecl(
        context=context,
        loc=ComponentPath.from_path(path),
        children=children,
        source_tree=None,
        component_file_model=None,
    )


def _replaced(context: ComponentDeclLoadContext, file: Path, found: Standing) -> ComponentDecl:
    usable = [
        partial(file_definitions, each.spec, file) for each in found.usable if each.path == file
    ]

    def load(_: ComponentDeclLoadContext) -> RefusedFile:
        return RefusedFile(file, found.refused[file], usable)

    return ComponentLoaderDecl(
        context=context, loc=ComponentPath.from_path(context.path), component_node_fn=load
    )
