"""Connections of the HTTP server: one request at a time, so that every hang-up is noticed.

While uvicorn answers a request, and the next one has come already (HTTP pipelining), it stops
reading the connection. It then cannot see that the caller has gone: the requests keep their slots
and the engine. Here such a connection is still read, its further requests are dropped, and it is
closed after the answer. RFC 9112 (section 9.3.2) lets a server do so, and a caller send them again.
"""

from __future__ import annotations

import asyncio
from typing import Any


def connection_class(base: type[asyncio.Protocol]) -> type[asyncio.Protocol]:
    """Return the class of a server's connections. base: uvicorn's, of httptools or h11."""

    class Connection(base):  # type: ignore[misc, valid-type]
        cycle: Any
        """uvicorn's state of the latest request; None before the first."""
        dropping = False
        """Whether a further request has come before the answer, and input is dropped."""

        def data_received(self, data: bytes) -> None:
            if self.dropping:
                return
            super().data_received(data)
            # h11 keeps the bytes after a request until that is answered.
            parser = getattr(self, "conn", None)
            cycle = self.cycle
            answering = cycle and not (cycle.more_body or cycle.response_complete)
            if parser and answering and parser.trailing_data[0]:
                self._drop_input(cycle)

        # Callbacks of httptools, which parses further requests at once:

        def on_headers_complete(self) -> None:
            if self.dropping:
                return
            cycle = self.cycle
            super().on_headers_complete()
            if cycle and not cycle.response_complete:
                self.pipeline.clear()
                self.cycle = cycle
                self._drop_input(cycle)

        def on_body(self, body: bytes) -> None:
            if not self.dropping:
                super().on_body(body)

        def on_message_complete(self) -> None:
            if not self.dropping:
                super().on_message_complete()

        def _drop_input(self, cycle: Any) -> None:
            """Close the connection after this request's answer, and drop what comes until then."""
            self.dropping = True
            cycle.keep_alive = False
            self.flow.resume_reading()

    return Connection
