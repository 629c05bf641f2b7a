"""`dpsynth serve`: who is asked in, what bounds the server, and what no row may hold."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import typer

from dpsynth_assets.cli import serve as command
from dpsynth_assets.models.engines.protocol import EngineError
from dpsynth_assets.orchestration.web.guard import Guard
from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.serving.app import RowServer
from dpsynth_assets_tests.declared import private
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


@pytest.mark.parametrize("token", [" ", "two words", "end\n", "a\u00a0b", "\u200b"])
def test_a_token_that_no_client_can_send_is_refused_and_not_shown(token):
    with pytest.raises(typer.BadParameter, match=r"without blanks, got others \(not shown\)"):
        command._expect_private("127.0.0.1", token, None, None)


def test_half_of_a_certificate_is_refused(tmp_path):
    with pytest.raises(typer.BadParameter, match="together"):
        command._expect_private("127.0.0.1", "a-token", tmp_path / "x.pem", None)


@pytest.fixture
def artifacts(monkeypatch):
    """What the command serves, without a cohort behind it."""
    found = []
    monkeypatch.setattr(command, "find_cohort", lambda name: cohort())
    monkeypatch.setattr(command, "_artifacts", lambda *_, accept: found)
    monkeypatch.setattr(command, "expect_free", lambda *_: None)
    monkeypatch.delenv(command.TOKEN, raising=False)
    return found


def test_an_engine_that_cannot_open_a_model_is_told_in_its_own_line(artifacts):
    def too_large():
        raise EngineError("vLLM could not open letters in float32. Check cache_gib.")

    artifacts.append(SimpleNamespace(name="letters/ctcl", open=too_large))
    with pytest.raises(typer.BadParameter, match=r"letters/ctcl: vLLM could not .* cache_gib"):
        typer.main.get_command(_app()).main(["letters"], standalone_mode=False)


def test_vllm_leaves_room_for_other_artifacts_unless_the_file_declares_its_memory():
    spec = private()
    assert command._with_engine(spec, "vllm").engine.cache_gib == command.CACHE_GIB
    assert command._with_engine(spec, "transformers").engine.cache_gib is None
    own = private(engine={"kind": "vllm", "memory_fraction": 0.4})
    assert command._with_engine(own, "vllm") is own


def test_the_server_is_bounded_guarded_and_logs_no_request(artifacts, monkeypatch):
    found = []
    opened = nullcontext(Sentences())
    artifacts.append(SimpleNamespace(name="letters/ctcl", open=lambda: opened))
    monkeypatch.setattr(RowServer, "run", lambda server: found.append(server.config))
    typer.main.get_command(_app()).main(["letters"], standalone_mode=False)
    (config,) = found
    assert isinstance(config.app, Guard)
    assert config.limit_concurrency == 512
    assert not config.access_log
    assert config.host == "127.0.0.1"


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
