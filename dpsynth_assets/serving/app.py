"""The routes: models, completions, chat completions. Speaks OpenAI's form, so its clients work.

The server is uvicorn, with bounds on what a client may send and hold: a head of more than 16 KiB,
or one that is not whole in time, ends its connection; the token is asked for once a head is whole,
before its body is read.
"""

import asyncio
import hmac
import json
import socket
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from threading import Lock
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from dpsynth_assets.methods.capabilities import RowSource
from dpsynth_assets.report.label import Label
from dpsynth_assets.serving.artifacts import Artifact
from dpsynth_assets.serving.requests import Chat, Completion, RefusedError, RowRequest, read_request
from dpsynth_assets.serving.row_queue import SECONDS_TO_RETRY, RowQueue

LONGEST_BODY = 1 << 16
"""Bytes of a request: a label and a few numbers."""
SECONDS_FOR_BODY = 20
LONGEST_HEAD = 1 << 14
SECONDS_FOR_HEAD = 10
"""From the first moment of a connection, or from the answer before."""
SECONDS_TO_END = 5
"""What is being written when the server ends is still answered, for so long at most."""
MOST_CLIENTS = 512
"""Clients that may be connected at once."""
SECONDS_BETWEEN_LOOKS = 1
"""How often a request that waits looks whether its client is still there."""
_CLIENT_HAS_GONE = 499


@dataclass(kw_only=True)
class Served:
    """An open artifact, with the label that holds today.

    Attributes:
        artifact: The release.
        source: Writes its rows.
        day: Date of the ledger's line, UTC.
        label: Privacy label of the rows.
    """

    artifact: Artifact
    source: RowSource
    day: str = ""
    label: Label = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def today(self) -> Label:
        """The rows' label; on the first request of a day the ledger gets its line first."""
        day = datetime.now(UTC).date().isoformat()
        with self._lock:
            if day != self.day:
                self.label, self.day = self.artifact.line(day), day
            return self.label


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """Answers requests over open artifacts.

    Attributes:
        served: Open artifacts by name.
        queue: Writes the rows.
        most_rows: Rows that one request may ask for.
        token: What a client must send as `Authorization: Bearer`; empty: nothing.
    """

    served: Mapping[str, Served]
    queue: RowQueue
    most_rows: int
    token: str = field(default="", repr=False)

    def app(self) -> Starlette:
        """The ASGI application."""
        whole, chat = (partial(self._rows, kind=kind) for kind in (Completion, Chat))
        return Starlette(
            routes=[
                Route("/health", self._health),
                Route("/v1/models", self._guarded(self._models)),
                Route("/v1/models/{name:path}", self._guarded(self._model)),
                Route("/v1/completions", self._guarded(whole), methods=["POST"]),
                Route("/v1/chat/completions", self._guarded(chat), methods=["POST"]),
            ]
        )

    def _guarded(
        self, answer: Callable[[Request], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        """Asks for the token, and turns what goes wrong into one line of JSON."""

        async def guarded(request: Request) -> Response:
            try:
                self._expect_token(request.headers.get("authorization", ""))
                return await answer(request)
            except RefusedError as problem:
                return _error(problem)
            except Exception as problem:  # noqa: BLE001 - a library's message may quote a request
                return _error(_not_written(problem))

        return guarded

    def _expect_token(self, authorization: str) -> None:
        expected = f"Bearer {self.token}"
        given = authorization.encode("latin-1"), expected.encode()  # as it came, as it was sent
        if self.token and not hmac.compare_digest(*given):
            line = "Expected the token of this server as `Authorization: Bearer`, got another."
            raise RefusedError(line, status=401)

    def _found(self, name: str) -> Served:
        if name not in self.served:
            line = f"model: expected one of {', '.join(self.served)}, got another name."
            raise RefusedError(line, "model", status=404)
        return self.served[name]

    async def _health(self, _: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def _models(self, _: Request) -> Response:
        found = [_model_facts(name, served) for name, served in self.served.items()]
        return JSONResponse({"object": "list", "data": found})

    async def _model(self, request: Request) -> Response:
        name = request.path_params["name"]
        served = self._found(name)
        label, facts = await asyncio.to_thread(served.today), _model_facts(name, served)
        return JSONResponse({**facts, "dpsynth": {**facts["dpsynth"], "privacy_label": label}})

    async def _rows(self, request: Request, *, kind: type[RowRequest]) -> Response:
        asked = read_request(await _document(request), kind)
        served = self._found(asked.model)
        labels = asked.labels(served.source, self.most_rows)
        label = await asyncio.to_thread(served.today)
        rows = self.queue.ask(asked.model, labels, asked.sampling)
        answer = _Answer(asked, served.source, _provenance(label))
        if asked.stream:
            return StreamingResponse(answer.streamed(rows), media_type="text/event-stream")
        texts = await _texts(request, rows)
        if texts is None:
            return Response(status_code=_CLIENT_HAS_GONE)
        return JSONResponse(answer.whole(texts))


class _Answer:
    """One answer in OpenAI's form, whole or as server-sent events."""

    def __init__(self, asked: RowRequest, source: RowSource, provenance: dict[str, Any]) -> None:
        self._asked, self._source, self._provenance = asked, source, provenance
        self._head = {
            "id": f"{'chatcmpl' if asked.is_chat else 'cmpl'}-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": asked.model,
            "dpsynth": provenance,
        }

    def whole(self, texts: Sequence[str]) -> dict[str, Any]:
        kind = "chat.completion" if self._asked.is_chat else "text_completion"
        choices = [self._choice(place, text, "message") for place, text in enumerate(texts)]
        return {**self._head, "object": kind, "choices": choices, "usage": self._usage(texts)}

    async def streamed(self, rows: "Sequence[Future[str]]") -> AsyncIterator[str]:
        kind = "chat.completion.chunk" if self._asked.is_chat else "text_completion"
        texts = []
        try:
            for place, row in enumerate(rows):
                texts.append(await asyncio.wrap_future(row))
                choices = [self._choice(place, texts[-1], "delta")]
                yield _event({**self._head, "object": kind, "choices": choices})
        except Exception as problem:  # noqa: BLE001 - as for a whole answer
            line = str(_not_written(problem))
            yield _event({"error": {"message": line, "type": "server_error"}})
            return
        finally:
            for row in rows:  # Of a client that has gone.
                row.cancel()
        if self._asked.with_usage:
            yield _event({**self._head, "object": kind, "choices": [], "usage": self._usage(texts)})
        yield "data: [DONE]\n\n"

    def _choice(self, place: int, text: str, part: str) -> dict[str, Any]:
        ended = {"index": place, "finish_reason": "stop", "logprobs": None}
        if self._asked.is_chat:
            return {**ended, part: {"role": "assistant", "content": text}}
        return {**ended, "text": text}

    def _usage(self, texts: Sequence[str]) -> dict[str, int]:
        written = sum(map(self._source.tokens, texts))
        return {"prompt_tokens": 0, "completion_tokens": written, "total_tokens": written}


async def _texts(request: Request, rows: "Sequence[Future[str]]") -> Sequence[str] | None:
    """Waits for rows; None once the client has gone, whose rows are not written any more."""
    written = asyncio.gather(*map(asyncio.wrap_future, rows))
    written.add_done_callback(lambda done: done.cancelled() or done.exception())
    try:
        while not (await asyncio.wait([written], timeout=SECONDS_BETWEEN_LOOKS))[0]:
            if await request.is_disconnected():
                return None
        return written.result()
    finally:
        for row in rows:
            row.cancel()


async def _document(request: Request) -> Any:
    try:
        async with asyncio.timeout(SECONDS_FOR_BODY):
            body = await _body(request)
    except TimeoutError:
        line = f"Expected a body within {SECONDS_FOR_BODY} seconds, got a part of one."
        raise RefusedError(line, "body") from None
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise RefusedError("Expected a body of JSON, got something else.", "body") from None


async def _body(request: Request) -> bytearray:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > LONGEST_BODY:
            raise RefusedError(f"Expected a body of at most {LONGEST_BODY} bytes.", "body")
    return body


def _provenance(label: Label) -> dict[str, Any]:
    """What an answer says of its rows; the whole label is at `/v1/models/<model>`."""
    guarantee = label["guarantee"]
    kept = ("type", "epsilon", "delta", "definition")
    return {
        "guarantee": {name: guarantee[name] for name in kept if name in guarantee},
        "privacy_unit": label["privacy_unit"],
        "neighboring_relation": label["neighboring_relation"],
        "reservation": label["subject"]["reservation"],
        "epsilon_of_this_request": 0.0,
    }


def _model_facts(name: str, served: Served) -> dict[str, Any]:
    made = datetime.fromisoformat(f"{served.artifact.charge.recorded_at[:10]}T00:00:00+00:00")
    return {
        "id": name,
        "object": "model",
        "created": int(made.timestamp()),
        "owned_by": "dpsynth_assets",
        "dpsynth": {
            "labels": list(served.source.labels),
            "longest_row_tokens": served.source.longest,
            "engine": served.source.engine,
        },
    }


def _error(problem: RefusedError) -> Response:
    kind = "server_error" if problem.status >= 500 else "invalid_request_error"
    error = {"message": str(problem), "type": kind, "param": problem.field, "code": None}
    headers = {"retry-after": str(SECONDS_TO_RETRY)} if problem.status == 429 else None
    return JSONResponse({"error": error}, status_code=problem.status, headers=headers)


def _not_written(problem: Exception) -> RefusedError:
    kind = type(problem).__name__
    return RefusedError(f"The rows could not be written ({kind}).", status=500)


def _event(document: Mapping[str, Any]) -> str:
    return f"data: {json.dumps(document, ensure_ascii=False)}\n\n"


class RowServer(uvicorn.Server):
    """Serves rows until SIGINT or SIGTERM; then what waits to be written is refused at once."""

    def __init__(self, app: Any, queue: RowQueue, **address: Any) -> None:
        """Binds nothing yet.

        Args:
            app: The ASGI application.
            queue: Where its rows wait.
            **address: Host, port and certificate, as uvicorn names them.
        """
        self._queue = queue
        config = uvicorn.Config(
            app,
            http=_PromptClients,
            h11_max_incomplete_event_size=LONGEST_HEAD,
            timeout_keep_alive=SECONDS_FOR_HEAD,
            timeout_graceful_shutdown=SECONDS_TO_END,
            limit_concurrency=MOST_CLIENTS,
            log_level="warning",
            access_log=False,
            **address,
        )
        super().__init__(config)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Refuses the rows that wait, then lets answers end."""
        self._queue.refuse_all()
        await super().shutdown(sockets)


class _PromptClients(H11Protocol):
    """Ends a connection whose next head is not whole in time; a part of one gives no respite."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler
        )

    def data_received(self, data: bytes) -> None:
        self.conn.receive_data(data)
        self.handle_events()  # It stops the clock once a head is whole.
