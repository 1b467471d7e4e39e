"""Access control: host names, pages of other sites (CORS), content types and bearer tokens. Imports no protocol
library.

A web page that a user of this machine visits can send requests to the server from the browser. Two checks stop it. If
the page's own name resolves to 127.0.0.1 (DNS rebinding), the server refuses that host name. And the browser names the
page's site in `Origin`, which must be the server's own or an allowed one.
"""

import dataclasses
import hmac
import ipaddress
import re
from collections.abc import Sequence

from official_bert.server.statuses import RequestError
from official_bert.storage.files import read_bytes

LABEL = r"[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?"
ADDRESS = r"\[(?P<address>[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*)\]"
HOST = re.compile(rf"((?P<name>{LABEL}(\.{LABEL})*)|{ADDRESS})(:(?P<port>[0-9]{{0,5}}))?")  # RFC 3986, 3.2.2
ORIGIN = re.compile(r"https?://[^/\s?#@,]+")
SHORTEST_TOKEN = 16  # characters
# What clients send that are no browsers: curl -d, Python's requests and urllib3 without a header of their own.
UNDECLARED = ("", "application/x-www-form-urlencoded", "application/octet-stream")


@dataclasses.dataclass(frozen=True, kw_only=True)
class AccessRules:
    """Rules that decide whose requests are answered. Every check raises RequestError."""

    any_host: bool = False  # the server is bound to an address that others can reach, and no names were given
    hosts: tuple[str, ...] = ()  # names beside those of this machine
    origins: tuple[str, ...] = ()  # sites whose pages may ask from a browser
    tokens: tuple[str, ...] = ()  # none: nobody has to show one

    def __post_init__(self) -> None:
        for origin in self.origins:
            if not ORIGIN.fullmatch(origin):
                raise ValueError(f"--allowed_origins: expected sites such as https://example.org, got {origin!r}")
        for host in self.hosts:
            if not host or _host_name(host) != host.lower():
                raise ValueError(f"--allowed_hosts: expected names without ports, such as example.org, got {host!r}")

    @classmethod
    def for_server(
        cls, bound_to: str, *, hosts: Sequence[str] = (), origins: Sequence[str] = (), tokens: Sequence[str] = ()
    ) -> "AccessRules":
        """Returns the rules of a server that listens on `bound_to`: host names are checked on loopback, or if any are
        given.
        """
        return cls(
            any_host=not hosts and not is_local(bound_to),
            hosts=tuple(hosts),
            origins=tuple(origins),
            tokens=tuple(tokens),
        )

    def check_host(self, host: str | None) -> None:
        """Checks a `Host` header. None, from HTTP/1.0, passes, because browsers always send one."""
        name = _host_name(host or "")
        if host is not None and not (self.any_host or is_local(name) or name in map(str.lower, self.hosts)):
            raise RequestError(
                "PERMISSION_DENIED", f"Host {host[:80]!r}: expected a name of this machine or one of --allowed_hosts"
            )

    def check_origin(self, origin: str | None, host: str | None) -> None:
        """Checks an `Origin` header: it must be missing, name the same server as `Host`, or name an allowed site."""
        if origin is not None and not self.is_allowed(origin) and not _same_site(origin, host or ""):
            raise RequestError(
                "PERMISSION_DENIED", f"Origin {origin[:80]!r}: expected this server or one of --allowed_origins"
            )

    def is_allowed(self, origin: str) -> bool:
        """Returns whether a site is among the allowed ones."""
        return origin.lower() in map(str.lower, self.origins)

    def check_token(self, authorization: str) -> None:
        """Checks an `Authorization` header against all tokens, in constant time."""
        if self.tokens:
            scheme, _, sent_token = authorization.partition(" ")
            data = sent_token.strip().encode("utf-8", "surrogateescape")
            matches = [hmac.compare_digest(data, token.encode()) for token in self.tokens]
            if scheme.lower() != "bearer" or not any(matches):
                raise RequestError(
                    "UNAUTHENTICATED", "expected the header Authorization: Bearer with one of the server's tokens"
                )


def accepts(content_type: str, from_browser: bool) -> bool:
    """Returns whether a body with this content type may be JSON.

    TF Serving ignores the type. Here a browser must declare JSON, because a page may not send that type to another site
    without a CORS preflight. Other clients may omit the type, or send the type that `curl -d` gives to every body.
    """
    media_type = content_type.partition(";")[0].strip().lower()
    return (
        media_type == "application/json"
        or media_type.endswith("+json")
        or (not from_browser and media_type in UNDECLARED)
    )


def is_local(host: str) -> bool:
    """Returns whether a host name or address means this machine."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def read_tokens(path: str) -> list[str]:
    """Returns the tokens in a file, one per line, so that an old and a new token can be valid together.

    Raises ValueError.
    """
    try:
        lines = read_bytes(path).decode().split("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = (error.strerror or error) if isinstance(error, OSError) else "not valid UTF-8"
        raise ValueError(f"--api_token_file={path}: {reason}") from None
    tokens = []
    for number, line in enumerate(lines, 1):
        token = line.strip()
        if not token:
            continue
        if not re.fullmatch(rf"[\x21-\x7e]{{{SHORTEST_TOKEN},}}", token):
            raise ValueError(f"{path}:{number}: expected a token of at least {SHORTEST_TOKEN} visible ASCII characters")
        tokens.append(token)
    if not tokens:
        raise ValueError(f"--api_token_file={path}: expected a token, got an empty file")
    return tokens


def _host_name(host: str) -> str:
    """Returns the name in a `Host` header in lower case without its port; "" for an invalid header."""
    match = HOST.fullmatch(host)
    if not match or int(match["port"] or 0) > 65535:
        return ""
    return (match["name"] or match["address"]).lower()


def _same_site(origin: str, host: str) -> bool:
    """Returns whether a page of `origin` came from the server that `host` names."""
    return bool(ORIGIN.fullmatch(origin)) and origin.partition("://")[2].lower() == host.lower()
