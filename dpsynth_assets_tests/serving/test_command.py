"""`dpsynth serve`: who is asked in, what bounds the server, and what no row may hold."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import typer
import uvicorn

from dpsynth_assets.cli import serve as command
from dpsynth_assets.cli.web import command as web
from dpsynth_assets.cli.web.guard import Guard
from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets_tests.serving.conftest import Sentences


def cohort(canaries=None):
    return SimpleNamespace(name="letters", evaluation=SimpleNamespace(canaries=canaries))


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.5", "::", "example.org"])
def test_strangers_are_not_served_without_a_token(host):
    with pytest.raises(typer.BadParameter, match=command.TOKEN):
        command._expect_private(host, "", None, None)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_this_machine_is_served_without_a_token(host):
    command._expect_private(host, "", None, None)


def test_half_of_a_certificate_is_refused(tmp_path):
    with pytest.raises(typer.BadParameter, match="together"):
        command._expect_private("127.0.0.1", "a-token", tmp_path / "x.pem", None)


def test_the_server_is_bounded_guarded_and_logs_no_request(monkeypatch):
    found = {}
    artifact = SimpleNamespace(name="letters/ctcl", open=lambda: nullcontext(Sentences()))
    monkeypatch.setattr(command, "find_cohort", lambda name: cohort())
    monkeypatch.setattr(command, "_cohort", lambda *_: None)
    monkeypatch.setattr(command, "_artifacts", lambda *_, accept: [artifact])
    monkeypatch.setattr(web, "expect_free", lambda *_: None)
    monkeypatch.setattr(uvicorn, "run", lambda app, **options: found.update(options, app=app))
    monkeypatch.delenv(command.TOKEN, raising=False)
    typer.main.get_command(_app()).main(["letters"], standalone_mode=False)
    assert isinstance(found["app"], Guard)
    assert found["limit_concurrency"] == 512
    assert not found["access_log"]
    assert found["host"] == "127.0.0.1"


def _app():
    app = typer.Typer()
    app.command()(command.serve)
    return app


def test_declared_canaries_are_looked_for(tmp_path):
    assert command._canaries(cohort()) == []
    file = tmp_path / "canaries.txt"
    file.write_text("XQ7-ZZ19-KV04\n")
    assert command._canaries(cohort(str(file))) == ["XQ7-ZZ19-KV04"]


def test_canaries_that_cannot_be_looked_for_are_refused_before_a_model_is_opened(tmp_path):
    file = tmp_path / "canaries.txt"
    with pytest.raises(PrivacyError, match=r"evaluation\.canaries of letters"):
        command._canaries(cohort(str(file)))
    file.write_text("XQ7\n")
    with pytest.raises(PrivacyError, match="longer canaries"):
        command._canaries(cohort(str(file)))
