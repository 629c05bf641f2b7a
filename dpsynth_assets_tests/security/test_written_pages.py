"""Which written pages the web server shows, and to whom: those that are named, and nothing else."""

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from dpsynth_assets.orchestration.web.server import page_routes
from dpsynth_assets.paths import home as begun_home
from dpsynth_assets.report.pages import page_address

AUDIT = (
    "reports/letters/audit_trail.html",
    "reports/budgets.html",
    "reports/letters/officer_pack/officer_pack.html",
)
RELEASED = (
    "released/letters/mean/README.md",
    "released/letters/mean/privacy_label.json",
    "released/letters/privacy_statement.md",
)
REPORT = "reports/letters/report.html"
KEPT = (
    "reports/letters/metrics.json",
    "released/letters/mean/data/README.md",
    "sensitive/letters/README.md",
    "ledger.db",
    "reports/.hidden/report.html",
    "outside/report.html",
)


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("DPSYNTH_HOME", str(tmp_path))
    begun_home()
    for name in (*AUDIT, *RELEASED, REPORT, *KEPT):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"content of {name}")
    (tmp_path / "reports" / "elsewhere").symlink_to(tmp_path / "outside")
    return tmp_path


def client(*, read_only):
    return TestClient(Starlette(routes=page_routes({}, read_only=read_only)))


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("read_only", [False, True])
def test_what_was_released_and_audited_is_shown_by_every_server(read_only):
    for name in (*AUDIT, *RELEASED):
        answer = client(read_only=read_only).get(page_address(*name.split("/")))
        assert (answer.status_code, answer.text) == (200, f"content of {name}")
        assert "default-src 'none'" in answer.headers["content-security-policy"]


@pytest.mark.usefixtures("home")
def test_a_report_is_shown_by_the_stewards_server_alone():
    assert client(read_only=False).get(f"/pages/{REPORT}").status_code == 200
    answer = client(read_only=True).get(f"/pages/{REPORT}")
    assert answer.status_code == 403
    assert "content of" not in answer.text


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize(
    "path",
    [
        *KEPT,
        "reports/elsewhere/report.html",
        "reports/../outside/report.html",
        "reports/%2e%2e/outside/report.html",
        "reports/..%2foutside%2freport.html",
        "reports//report.html",
        "reports/letters",
        "reports/letters%00/report.html",
    ],
)
def test_nothing_else_has_an_address(path, read_only):
    answer = client(read_only=read_only).get(f"/pages/{path}")
    assert answer.status_code in (403, 404)
    assert "content of" not in answer.text
