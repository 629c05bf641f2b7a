"""The HTTP server of the endpoint: uvicorn, with bounds on what a client may send and hold.

A head of more than 16 KiB, or one that is not whole in time, ends its connection; the token is
asked for once a head is whole, before its body is read (`app`).
"""

import asyncio
import socket
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from dpsynth_assets.serving.row_queue import RowQueue

LONGEST_HEAD = 1 << 14
SECONDS_FOR_HEAD = 10
"""From the first moment of a connection, or from the answer before."""
SECONDS_TO_END = 5
"""What is being written when the server ends is still answered, for so long at most."""


class RowServer(uvicorn.Server):
    """Serves rows until SIGINT or SIGTERM; then what waits to be written is refused at once."""

    def __init__(self, app: Any, queue: RowQueue, *, connections: int, **address: Any) -> None:
        """Binds nothing yet.

        Args:
            app: The ASGI application.
            queue: Where its rows wait.
            connections: Clients that may be connected at once.
            **address: Host, port and certificate, as uvicorn names them.
        """
        self._queue = queue
        config = uvicorn.Config(
            app,
            http=_PromptClients,
            h11_max_incomplete_event_size=LONGEST_HEAD,
            timeout_keep_alive=SECONDS_FOR_HEAD,
            timeout_graceful_shutdown=SECONDS_TO_END,
            limit_concurrency=connections,
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
