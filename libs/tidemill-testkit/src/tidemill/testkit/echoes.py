"""Servers that refuse every login and repeat the bytes of it: for tests of redaction."""

from __future__ import annotations

import re
import socket
import socketserver
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

Answer = Callable[[socket.socket], None]

_REFUSED_LOGIN = 58
_API_VERSIONS, _HANDSHAKE, _AUTHENTICATE = 18, 17, 36


@contextmanager
def echoing(answer: Answer, tls: ssl.SSLContext | None = None) -> Iterator[int]:
    """The port of loopback on which `answer` has each connection, over TLS if that is given."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with suppress(OSError):  # who asked is gone, or trusts nobody here
                sock = self.request if tls is None else tls.wrap_socket(self.request, True)
                answer(sock)

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        allow_reuse_address = True

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield int(server.server_address[1])
        finally:
            server.shutdown()
            thread.join()


def http_echo(sock: socket.socket) -> None:
    """Refuses with what it was sent as its reason; a path with `garbled` in it gets no HTTP at
    all.
    """
    sent = sock.recv(1 << 16)
    echo = b" ".join(re.findall(rb"(?im)^(?:authorization|x-[a-z-]+): ([^\r\n]*)", sent))
    if b"garbled" in sent.split(b"\r\n", 1)[0]:
        sock.sendall(echo + b"\r\n" + sent)
        return
    body = b"refused: " + echo
    sock.sendall(
        b"HTTP/1.1 401 " + echo + b"\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(body)
        + body
    )  # fmt: skip


def redis_echo(sock: socket.socket) -> None:
    """Knows no command, and says so as Redis does: with the arguments."""
    while sent := sock.recv(1 << 16):
        words = re.findall(rb"\$\d+\r\n([^\r]*)\r\n", sent)
        said = b" ".join(b"`" + word + b"`" for word in words[1:])
        for _ in range(sent.count(b"*")):
            sock.sendall(
                b"-ERR unknown command `"
                + words[0]
                + b"`, with args beginning with: "
                + said
                + b"\r\n"
            )


def kafka_echo(sock: socket.socket) -> None:
    """A broker that refuses PLAIN with what it was sent as its message."""
    while head := sock.recv(4, socket.MSG_WAITALL):
        request = sock.recv(struct.unpack(">i", head)[0], socket.MSG_WAITALL)
        kind, _, number = struct.unpack(">hhi", request[:8])
        if kind == _API_VERSIONS:
            ranges = [(_API_VERSIONS, 0, 0), (_HANDSHAKE, 0, 1), (_AUTHENTICATE, 0, 0), (3, 0, 5)]
            body = struct.pack(">hi", 0, len(ranges))
            body += b"".join(struct.pack(">hhh", *each) for each in ranges)
        elif kind == _HANDSHAKE:
            body = struct.pack(">hi", 0, 1) + struct.pack(">h", 5) + b"PLAIN"
        else:
            said = b"refused: " + request[8:].replace(b"\0", b" ")
            body = struct.pack(">hh", _REFUSED_LOGIN, len(said)) + said + struct.pack(">i", 0)
        reply = struct.pack(">i", number) + body
        sock.sendall(struct.pack(">i", len(reply)) + reply)
