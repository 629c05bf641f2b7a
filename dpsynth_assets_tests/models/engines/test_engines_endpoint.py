"""The endpoint engine keeps private text here, and is patient with a real HTTP server."""

import json
import logging
import threading
import time
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from dpsynth_assets.datasets.public_spec import EngineSpec
from dpsynth_assets.models.engines.openai_endpoint import (
    OpenAiEndpoint,
    _retry_after,
)
from dpsynth_assets.models.engines.protocol import Capability, EngineError, Provenance, Sampling

KEY = "sk-very-secret"
PUBLIC = {"provenance": Provenance.PUBLIC}
SAMPLING = Sampling(max_new_tokens=7, seed=5)


class Server(ThreadingHTTPServer):
    """Answers each request with the next status of `script`, then with 200."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.script, self.requests, self.lock = [], [], threading.Lock()
        self.together, self.most_together, self.seconds = 0, 0, 0.0
        self.answer = None

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}/v1"


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        server = self.server
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        with server.lock:
            server.requests.append((self.path, dict(self.headers), body))
            status, headers = server.script.pop(0) if server.script else (200, {})
            server.together += 1
            server.most_together = max(server.most_together, server.together)
        time.sleep(server.seconds)
        with server.lock:
            server.together -= 1
        self.reply(status, headers, server.answer or self.content(status, body))

    def content(self, status, body):
        if status != 200:
            return {"error": {"message": f"echo: {body}", "code": "model_not_found"}}
        prompt = body.get("prompt") or body["messages"][0]["content"]
        usage = {"prompt_tokens": 10, "completion_tokens": 4}
        choice = {"finish_reason": "stop" if "short" in prompt else "length"}
        if "messages" in body:
            choice["message"] = {"role": "assistant", "content": prompt.upper()}
        else:
            choice["text"] = prompt.upper()
        return {"choices": [choice], "usage": usage}

    def reply(self, status, headers, content):
        data = json.dumps(content).encode() if not isinstance(content, bytes) else content
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    server = Server()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join(60)
    server.server_close()


@pytest.fixture
def engine(server, monkeypatch):
    return make(server, monkeypatch)


def make(server, monkeypatch, **options):
    if monkeypatch is not None:
        monkeypatch.setenv("SOME_KEY", KEY)
    settings = {"api_key_variable": "SOME_KEY", "attempts": 4, **options}
    engine = OpenAiEndpoint(
        EngineSpec(kind="openai", base_url=server.url, model="a-model", **settings)
    )
    waits = []
    engine._sleep, engine.waits = waits.append, waits
    return engine


def test_texts_come_back_in_the_order_of_their_prompts(server, engine):
    prompts = [f"prompt {n}" for n in range(20)] + ["short"]
    generations = engine.generate(prompts, SAMPLING, provenance=Provenance.RELEASED)
    assert [g.text for g in generations] == [prompt.upper() for prompt in prompts]
    assert [g.finished for g in generations] == [False] * 20 + [True]
    assert engine.spent["requests"] == 21


def test_the_request_says_what_the_sampling_says(server, engine):
    sampling = Sampling(
        temperature=0.5, top_p=0.9, top_k=4, max_new_tokens=(3, 9), seed=5, stop=("#",)
    )
    engine.generate(["a", "b"], sampling, **PUBLIC)
    path, headers, body = next(item for item in server.requests if item[2]["prompt"] == "b")
    assert path == "/v1/completions"
    assert {name.lower(): value for name, value in headers.items()}["authorization"].endswith(KEY)
    assert body == {
        "model": "a-model", "prompt": "b", "max_tokens": 9, "temperature": 0.5, "top_p": 0.9,
        "top_k": 4, "seed": 6, "stop": ["#"],
    }  # fmt: skip


SCHEMA = json.dumps({"type": "object", "properties": {"overall": {"type": "integer"}}})


def test_an_endpoint_is_asked_for_answers_in_the_form(server, monkeypatch):
    engine = make(server, monkeypatch, api="chat")
    sampling = Sampling(max_new_tokens=7, json_schema=SCHEMA)
    engine.generate(["x"], sampling, **PUBLIC)
    [(_, _, body)] = server.requests
    assert body["response_format"]["json_schema"]["schema"] == json.loads(SCHEMA)


@pytest.mark.parametrize("status", [400, 422])
def test_an_endpoint_that_knows_no_forms_is_asked_for_words(server, monkeypatch, status):
    engine = make(server, monkeypatch, concurrency=1)
    server.script = [(status, {})]
    sampling = Sampling(max_new_tokens=7, json_schema=SCHEMA)
    made = engine.generate(["x", "y"], sampling, **PUBLIC)
    assert [each.text for each in made] == ["X", "Y"]
    assert ["response_format" in body for _, _, body in server.requests] == [True, False, False]


def test_a_refusal_that_is_not_about_the_form_stays_one(server, monkeypatch):
    engine = make(server, monkeypatch, concurrency=1)
    server.script = [(401, {})]
    with pytest.raises(EngineError, match="status 401"):
        engine.generate(["x"], Sampling(max_new_tokens=7, json_schema=SCHEMA), **PUBLIC)
    assert len(server.requests) == 1


def test_the_chat_route_sends_one_message(server, monkeypatch):
    engine = make(server, monkeypatch, api="chat", api_key_variable=None)
    assert engine.generate(["hello"], SAMPLING, **PUBLIC)[0].text == "HELLO"
    path, headers, body = server.requests[0]
    assert path == "/v1/chat/completions"
    assert body["messages"] == [{"role": "user", "content": "hello"}]
    assert "Authorization" not in headers


@pytest.mark.parametrize("settings", [{}, {"provenance": Provenance.PRIVATE}])
def test_private_and_unstated_prompts_never_leave(server, engine, settings):
    with pytest.raises(EngineError, match="private ones: its operator would read them"):
        engine.generate(["the patient"], SAMPLING, **settings)
    assert not server.requests


def test_busy_and_broken_answers_are_tried_again(server, engine):
    server.script = [(429, {"retry-after": "7"}), (500, {}), (503, {"retry-after": "soon"})]
    assert engine.generate(["x"], SAMPLING, **PUBLIC)[0].text == "X"
    assert len(server.requests) == 4
    assert engine.spent["retries"] == 3
    retry_after, second, third = engine.waits
    assert retry_after == 7
    assert 0.5 <= second <= 1
    assert 1 <= third <= 2


def test_patience_ends_after_the_stated_attempts(server, engine, caplog):
    caplog.set_level(logging.DEBUG)
    server.script = [(500, {})] * 9
    with pytest.raises(EngineError, match="within 4 tries, last got status 500") as raised:
        engine.generate(["a prompt nobody logs"], SAMPLING, **PUBLIC)
    assert len(server.requests) == 4
    for seen in (str(raised.value), caplog.text, repr(engine.usage), repr(engine)):
        assert KEY not in seen
        assert "nobody logs" not in seen


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422, 301])
def test_refusals_are_not_tried_again(server, engine, status):
    server.script = [(status, {"location": "http://127.0.0.1:9/"})]
    with pytest.raises(EngineError, match=rf"status {status} \(model_not_found\)") as raised:
        engine.generate(["a prompt"], SAMPLING, **PUBLIC)
    assert len(server.requests) == 1
    assert "echo" not in str(raised.value)


def test_an_unreachable_endpoint_gives_one_line(server, monkeypatch):
    engine = make(server, monkeypatch, timeout_seconds=0.2, attempts=2)
    server.seconds = 0.5
    with pytest.raises(EngineError, match="within 2 tries, last got ReadTimeout"):
        engine.generate(["x"], SAMPLING, **PUBLIC)


@pytest.mark.parametrize("answer", [b"<html>", b"[]", {"choices": []}, {"choices": [{}]}])
def test_answers_that_are_not_the_apis_give_one_line(server, engine, answer):
    server.answer = answer
    with pytest.raises(EngineError, match="Expected"):
        engine.generate(["x"], SAMPLING, **PUBLIC)


def test_no_more_requests_are_in_flight_than_stated(server, monkeypatch):
    server.seconds = 0.03
    make(server, monkeypatch, concurrency=3).generate(["x"] * 12, SAMPLING, **PUBLIC)
    assert server.most_together == 3


def test_tokens_cost_what_the_prices_say(server, monkeypatch):
    prices = {"price_per_million_prompt_tokens": 2.0, "price_per_million_new_tokens": 10.0}
    engine = make(server, monkeypatch, **prices)
    engine.generate(["x"] * 5, SAMPLING, **PUBLIC)
    spent = engine.spent
    assert (spent["prompt_tokens"], spent["new_tokens"]) == (50, 20)
    assert spent["cost"] == pytest.approx((50 * 2 + 20 * 10) / 1e6)


def test_nothing_starts_once_the_limit_is_spent(server, monkeypatch):
    limit = {"price_per_million_prompt_tokens": 1e5, "cost_limit": 2.5}  # a request costs 1
    engine = make(server, monkeypatch, **limit, concurrency=1)
    with pytest.raises(EngineError, match=r"cost_limit 2\.5"):
        engine.generate(["x"] * 9, SAMPLING, **PUBLIC)
    assert len(server.requests) == 3


def test_progress_counts_answers(engine):
    shares = []
    engine.generate(["x"] * 4, SAMPLING, progress=shares.append, **PUBLIC)
    assert shares == [0.25, 0.5, 0.75, 1.0]


def test_what_an_endpoint_cannot_do_it_refuses(engine):
    assert engine.capabilities == set()
    assert Capability.PRIVATE_TEXT not in engine.capabilities
    with pytest.raises(EngineError, match="token ids"):
        engine.generate([[1, 2]], SAMPLING, **PUBLIC)


def test_a_key_that_is_not_there_is_named_not_guessed(server, monkeypatch):
    monkeypatch.delenv("SOME_KEY", raising=False)
    with pytest.raises(EngineError, match="environment variable SOME_KEY"):
        make(server, monkeypatch=None)


def test_retry_after_reads_seconds():
    assert _retry_after("3", 1) == 3
    assert _retry_after("9999", 1) == 60
    assert _retry_after(None, 1.5) == 1.5
    assert _retry_after("whenever", 1.5) == 1.5
    assert _retry_after(formatdate(usegmt=True), 9) == 9
