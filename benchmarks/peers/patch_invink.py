"""Makes invink 0.1.0 importable on Python 3.11: one f-string nests its own quotes."""

import importlib.util
from pathlib import Path

NESTED = '{"all devices" if device_map == "auto" else device_map}'

package = importlib.util.find_spec("invink")
file = Path(package.origin).with_name("utils.py")
source = file.read_text(encoding="utf-8")
if NESTED in source:
    file.write_text(source.replace(NESTED, NESTED.replace('"', "'")), encoding="utf-8")
