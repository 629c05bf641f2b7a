"""The documentation as a site: it builds without a warning and loads nothing from elsewhere."""

import os
import re
import subprocess

import pytest

from dpsynth_assets.paths import project_root

CONFIG = project_root() / "deploy" / "site" / "mkdocs.yml"
MKDOCS = project_root() / ".venv-docs" / "bin" / "mkdocs"

pytestmark = pytest.mark.skipif(not MKDOCS.exists(), reason="needs the environment of `make docs`")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Every link between pages and to headings is checked while it is built."""
    folder = tmp_path_factory.mktemp("site")
    made = subprocess.run(
        [
            *(str(MKDOCS), "build", "--quiet", "--strict"),
            *("--config-file", str(CONFIG), "--site-dir", str(folder)),
        ],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        timeout=240,
    )
    assert made.returncode == 0, made.stdout + made.stderr
    assert "WARNING" not in made.stderr
    return folder


def test_every_page_of_the_docs_is_in_the_site(site):
    pages = {path.stem for path in (project_root() / "docs").glob("*.md")}
    assert pages <= {path.stem for path in site.glob("*.html")}


def test_the_reference_of_the_public_calls_stands_on_its_page(site):
    page = (site / "python.html").read_text(encoding="utf-8")
    for name in ("run_method", "MethodRun", "PublicBase", "methods.base.Method"):
        assert re.search(rf'id="dpsynth_assets[^"]*{name}"', page), name
    assert ":::" not in page


def test_pages_load_nothing_from_another_server(site):
    loaded = re.compile(
        r'<(?:script|img|iframe)[^>]* src="(//|https?:)|<link[^>]* href="(//|https?:)'
    )
    for path in site.glob("*.html"):
        found = loaded.search(path.read_text(encoding="utf-8"))
        assert found is None or 'rel="canonical"' in found[0], (path.name, found[0])
