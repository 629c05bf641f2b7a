"""The endpoint: OpenAI's client and curl work, wrong requests get one line, nothing is charged."""

import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from starlette.testclient import TestClient

from dpsynth_assets.serving import app
from dpsynth_assets.serving.app import LONGEST_BODY
from dpsynth_assets_tests.serving.conftest import Sentences, listening

MODEL = "letters/ctcl"


@pytest.fixture
def client(opened):
    return TestClient(opened.app())


def completion(client, **fields):
    body = {"model": MODEL, "prompt": "billing", **fields}
    return client.post("/v1/completions", json=body)


def completed(address, **fields):
    """Asks a server that listens."""
    with httpx.Client(base_url=address, timeout=30) as client:
        return completion(client, **fields)


def test_labels_and_a_number_of_rows_are_answered_with_their_provenance(client, source):
    answer = completion(client, prompt=["billing", "delivery"], n=2).json()
    labels = [choice["text"].split()[1] for choice in answer["choices"]]
    assert labels == ["billing", "billing", "delivery", "delivery"]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert answer["usage"]["completion_tokens"] == 12
    assert answer["dpsynth"]["guarantee"]["epsilon"] == 3.0
    assert answer["dpsynth"]["epsilon_of_this_request"] == 0.0
    assert answer["dpsynth"]["reservation"] == "r" * 32


def test_sampling_reaches_the_writer_and_seeds_differ(client, source):
    completion(client, temperature=0.5, top_p=0.9, max_tokens=7)
    completion(client)
    (_, first, one), (_, second, other) = source.asked
    assert (first.temperature, first.top_p, first.max_new_tokens) == (0.5, 0.9, 7)
    assert (second.temperature, second.top_p, second.max_new_tokens) == (None, None, None)
    assert one != other


def test_the_ledger_gets_one_line_a_day(opened, monkeypatch):
    client, served = TestClient(opened.app()), opened.served[MODEL]
    for _ in range(3):
        completion(client)
    assert len(served.artifact.days) == 1
    served.day = "2026-01-01"  # Midnight has passed.
    completion(client)
    assert len(served.artifact.days) == 2


WRONG = [
    ({"prompt": "a secret of mine"}, "'billing', 'delivery'", "prompt"),
    ({"n": 9}, "at most 8 rows", "n"),
    ({"prompt": ["billing"] * 9}, "at most 8 rows", "n"),
    ({"max_tokens": 41}, "at most 40", "max_tokens"),
    ({"temperature": 1e-39}, "0.01", "temperature"),
    ({"top_p": 1e-320}, "top_p", "top_p"),
    ({"prompt": []}, "prompt", "prompt.str"),
    ({"n": 10**4200}, "less than or equal", "n"),
    ({"a secret\nof mine": 1}, "body: expected no such field", "body"),
    ({"suffix": "a secret of mine"}, "no such field", "suffix"),
]


@pytest.mark.parametrize(("fields", "told", "field"), WRONG)
def test_a_wrong_request_gets_one_line(client, source, fields, told, field):
    answer = completion(client, **fields)
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert told in error["message"]
    assert "\n" not in error["message"]
    assert "secret" not in error["message"]
    assert error["param"] == field
    assert not source.asked


def test_fields_that_ask_for_nothing_are_passed_over(client):
    neutral = {"presence_penalty": 0, "echo": False, "best_of": 1, "stop": None, "user": "me"}
    assert completion(client, **neutral).status_code == 200


NO_REQUESTS = b"{", b"[]", b"[" * LONGEST_BODY, b'{"temperature": NaN}', b" " * (LONGEST_BODY + 1)


@pytest.mark.parametrize("content", NO_REQUESTS)
def test_a_body_that_is_no_request_is_refused(client, content):
    assert client.post("/v1/completions", content=content).status_code == 400


def test_an_unknown_model_is_told_from_a_wrong_label(client):
    answer = completion(client, model="letters/other")
    assert answer.status_code == 404
    assert MODEL in answer.json()["error"]["message"]
    assert client.get("/v1/models/letters/other").status_code == 404


def test_models_are_listed_and_one_shows_the_whole_label(client):
    (model,) = client.get("/v1/models").json()["data"]
    assert model["id"] == MODEL
    assert model["dpsynth"]["labels"] == ["billing", "delivery"]
    whole = client.get(f"/v1/models/{MODEL}").json()
    assert whole["dpsynth"]["privacy_label"]["guarantee"]["epsilon"] == 3.0


def test_a_chat_names_a_label_in_one_message(client):
    body = {"model": MODEL, "messages": [{"role": "user", "content": "delivery"}]}
    answer = client.post("/v1/chat/completions", json=body).json()
    message = {"role": "assistant", "content": "a delivery letter"}
    assert answer["choices"][0]["message"] == message
    for wrong in ([], [{"role": "system", "content": "x"}], body["messages"] * 2):
        refused = client.post("/v1/chat/completions", json={**body, "messages": wrong})
        assert refused.status_code == 400


@pytest.mark.parametrize("token", ["a-long-token", "schlüssel"])
def test_the_token_is_asked_of_every_route_but_health(opening, source, token):
    client = TestClient(opening(source, token=token).app())
    assert client.get("/health").status_code == 200
    for given in ({}, {"Authorization": "Bearer other"}, {"Authorization": "Bearer é"}):
        headers = {name: value.encode() for name, value in given.items()}
        assert client.get("/v1/models", headers=headers).status_code == 401
    right = {"Authorization": f"Bearer {token}".encode()}
    assert client.get("/v1/models", headers=right).status_code == 200


def test_a_failing_writer_tells_its_kind_alone_and_the_next_request_is_answered(opened, source):
    client, write = TestClient(opened.app()), source.write

    def failing(labels, sampling, seed):
        source.write = write
        raise RuntimeError("a secret of mine")

    source.write = failing
    answer = completion(client)
    assert answer.status_code == 500
    assert answer.json()["error"]["message"] == "The rows could not be written (RuntimeError)."
    assert completion(client).status_code == 200


def test_a_blank_row_is_written_again(opening):
    source = Sentences(blank_first=True)
    answer = completion(TestClient(opening(source).app()), n=2).json()
    assert all(choice["text"] for choice in answer["choices"])
    assert len(source.asked) == 2


def test_requests_that_wait_together_share_a_batch(opening):
    source = Sentences(seconds=0.2)
    with listening(opening(source, batch_rows=16)) as address, ThreadPoolExecutor(9) as pool:
        asked = [pool.submit(completed, address, n=2) for _ in range(9)]
        assert {each.result().status_code for each in asked} == {200}
    assert len(source.asked) < 9
    assert max(len(labels) for labels, _, _ in source.asked) > 2


def test_more_rows_than_may_wait_are_refused_for_now(opening):
    opened = opening(Sentences(seconds=0.5), waiting=8, batch_rows=1)
    with ThreadPoolExecutor(1) as pool, listening(opened) as address:
        pool.submit(completed, address, n=8)
        time.sleep(0.2)
        refused = completed(address, n=8)
        assert refused.status_code == 429
        assert refused.headers["retry-after"]
        opened.queue.close()


def asked_and_left(address, **fields):
    """Sends a request for rows and goes away."""
    body = json.dumps({"model": MODEL, "prompt": "billing", **fields}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: here\r\ncontent-length: {len(body)}\r\n\r\n"
    with connected(address) as connection:
        connection.sendall(head.encode() + body)
        time.sleep(0.2)


@pytest.mark.parametrize("stream", [False, True])
def test_rows_of_a_client_that_has_gone_are_not_written(opening, stream, monkeypatch):
    monkeypatch.setattr(app, "SECONDS_BETWEEN_LOOKS", 0.05)
    source = Sentences(seconds=0.4)
    with listening(opening(source, batch_rows=1)) as address:
        asked_and_left(address, n=8, stream=stream)
        assert completed(address).status_code == 200
    assert len(source.asked) < 6


@pytest.mark.parametrize(("token", "status"), [("", 400), ("a-long-token", 401)])
def test_a_body_is_not_waited_for_long_nor_at_all_without_the_token(
    opening, source, monkeypatch, token, status
):
    monkeypatch.setattr(app, "SECONDS_FOR_BODY", 600 if token else 0.2)
    opened = opening(source, token=token)
    with listening(opened) as address, connected(address) as connection:
        head = "POST /v1/completions HTTP/1.1\r\nhost: here\r\ncontent-length: 90\r\n\r\n{"
        connection.sendall(head.encode())
        assert connection.recv(100).startswith(f"HTTP/1.1 {status}".encode())


def connected(address):
    host, port = address.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=10)


def test_a_head_that_does_not_end_is_refused_before_it_is_kept(opened):
    with listening(opened) as address, connected(address) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nx: " + b"a" * (2 * app.LONGEST_HEAD))
        assert connection.recv(100).startswith(b"HTTP/1.1 400")


def test_a_head_that_does_not_come_is_not_waited_for(opened, monkeypatch):
    monkeypatch.setattr(app, "SECONDS_FOR_HEAD", 0.2)
    with listening(opened) as address, connected(address) as silent, connected(address) as slow:
        slow.sendall(b"GET /health HTTP/1.1\r\n")
        assert silent.recv(100) == slow.recv(100) == b""
        assert httpx.get(f"{address}/health").status_code == 200


def test_a_server_that_ends_refuses_the_rows_that_wait(opening):
    source = Sentences(seconds=0.3)
    opened = opening(source, batch_rows=1)
    with ThreadPoolExecutor(1) as pool, listening(opened) as address:
        answer = pool.submit(completed, address, n=8)
        while not source.asked:
            time.sleep(0.01)
    assert answer.result().status_code == 429
    assert len(source.asked) < 8


def test_an_artifact_that_writes_a_canary_is_held_back(opening, source):
    """As the release gate holds back a corpus: the row is shown to nobody, nor any after it."""
    client = TestClient(opening(source, canaries=["a-delivery-LETTER"]).app())
    assert completion(client).status_code == 200
    for prompt in ("delivery", "billing"):
        answer = completion(client, prompt=prompt)
        assert answer.status_code == 410
        assert "canary" in answer.json()["error"]["message"]
        assert "letter" not in answer.text.lower().replace(MODEL, "")
    assert len(source.asked) == 2


def test_openais_client_works_whole_streamed_and_in_chat(opened):
    openai = pytest.importorskip("openai")
    with listening(opened) as address:
        client = openai.OpenAI(base_url=f"{address}/v1", api_key="none")
        whole = client.completions.create(model=MODEL, prompt="billing", n=2)
        assert [choice.text for choice in whole.choices] == ["a billing letter"] * 2
        stream = client.completions.create(model=MODEL, prompt="delivery", n=3, stream=True)
        texts = [choice.text for chunk in stream for choice in chunk.choices]
        assert texts == ["a delivery letter"] * 3
        asked = {"model": MODEL, "messages": [{"role": "user", "content": "billing"}]}
        chat = client.chat.completions.create(**asked)
        assert chat.choices[0].message.content == "a billing letter"
        streamed = {"stream": True, "stream_options": {"include_usage": True}}
        chunks = list(client.chat.completions.create(**asked, **streamed))
        assert chunks[0].choices[0].delta.content == "a billing letter"
        assert chunks[-1].usage.completion_tokens == 3
