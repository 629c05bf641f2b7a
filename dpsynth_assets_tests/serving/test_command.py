"""`dpsynth serve`: who is asked in, what bounds the server, and what no row may hold."""

from contextlib import nullcontext
from pathlib import Path
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


NO_TOKEN = r"without blanks, got others \(not shown\)"


@pytest.mark.parametrize(
    ("host", "token", "certificate", "told"),
    [
        *((host, "", None, command.TOKEN) for host in ("0.0.0.0", "::", "example.org")),
        *(("127.0.0.1", token, None, NO_TOKEN) for token in (" ", "two words", "end\n", "\u200b")),
        ("127.0.0.1", "a-token", Path("x.pem"), "together"),
        *((host, "", None, None) for host in ("127.0.0.1", "::1", "localhost")),
    ],
)
def test_strangers_need_a_token_that_a_client_can_send_and_a_whole_certificate(
    host, token, certificate, told
):
    refused = nullcontext() if told is None else pytest.raises(typer.BadParameter, match=told)
    with refused:
        command._expect_private(host, token, certificate, None)


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
        serve()


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
    serve()
    (config,) = found
    assert isinstance(config.app, Guard)
    assert config.limit_concurrency == 512
    assert not config.access_log
    assert config.host == "127.0.0.1"


def serve():
    app = typer.Typer()
    app.command()(command.serve)
    typer.main.get_command(app).main(["letters"], standalone_mode=False)


def test_declared_canaries_are_looked_for_and_refused_where_they_cannot_be(tmp_path):
    assert command._canaries(cohort()) == []
    file = tmp_path / "canaries.txt"
    with pytest.raises(PrivacyError, match=r"evaluation\.canaries of letters"):
        command._canaries(cohort(str(file)))
    file.write_text("XQ7\n")
    with pytest.raises(PrivacyError, match="longer canaries"):
        command._canaries(cohort(str(file)))
    file.write_text("XQ7-ZZ19-KV04\n")
    assert command._canaries(cohort(str(file))) == ["XQ7-ZZ19-KV04"]
