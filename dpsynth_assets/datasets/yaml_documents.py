"""YAML files as plain values: no Python objects, no key twice, no page that means billions."""

from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import yaml

from dpsynth_assets.datasets.problems import Problem

LARGEST_FILE_BYTES = 1 << 20
LARGEST_FILE_VALUES = 100_000
"""Values of a file once its aliases are written out; a few lines of YAML can mean billions."""


class TooLargeError(ValueError):
    """A file, or what its aliases stand for, is too large for a dataset file."""


class _StrictLoader(yaml.SafeLoader):
    """Refuses a key that is written twice, where YAML would keep the last, and merges without end.

    A subclass of the safe loader: no Python objects are built.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Hashable] = set()
        for key, _ in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                continue
            name = self.construct_object(key, deep=True)
            if isinstance(name, Hashable) and name in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {name!r} is written twice", key.start_mark
                )
            if isinstance(name, Hashable):
                seen.add(name)
        return super().construct_mapping(node, deep=deep)

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        super().flatten_mapping(node)
        if len(node.value) > LARGEST_FILE_VALUES:
            raise TooLargeError("merged keys without end")


def _loaded(path: Path) -> list[Any]:
    """Loads the documents of a file.

    Raises:
        TooLargeError: It is larger than a megabyte, or means more than 100,000 values.
    """
    with path.open("rb") as file:
        content = file.read(LARGEST_FILE_BYTES + 1)
    if len(content) > LARGEST_FILE_BYTES:
        raise TooLargeError(f"more than {LARGEST_FILE_BYTES >> 20} MiB")
    documents = list(yaml.load_all(content.decode("utf-8"), Loader=_StrictLoader))
    waiting, values = [*documents], 0
    while waiting:
        value = waiting.pop()
        values += 1
        if values > LARGEST_FILE_VALUES:
            raise TooLargeError("aliases that stand for too many values")
        if isinstance(value, Mapping):
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)
    return documents


def read_documents(path: Path) -> tuple[list[Any], list[Problem]]:
    """Reads the documents of one file that are not empty, or says what is wrong with it."""
    try:
        documents = _loaded(path)
    except (FileNotFoundError, IsADirectoryError):
        got, remedy = "none there", "Fix the path, or write one with `dg scaffold defs`."
    except OSError as error:
        got, remedy = error.strerror or "an unreadable file", "Make it readable."
    except UnicodeDecodeError:
        got, remedy = "bytes that are not UTF-8", "Save it as UTF-8 text."
    except TooLargeError as error:
        got, remedy = str(error), "Shorten it: a dataset file is a page of settings."
    except RecursionError:
        got, remedy = "values nested too deeply", "Nest them as the template does."
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        got = f"{getattr(error, 'problem', None) or 'text that is not YAML'}{where}"
        remedy = "Fix the line: indent with spaces, quote text with ':' or '#'."
    else:
        return [document for document in documents if document is not None], []
    return [], [Problem("", "a YAML file", got, remedy, file=str(path))]
