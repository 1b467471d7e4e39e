"""The page for trying the served models: one file that loads nothing from other servers and uses the REST interface."""

import base64
import hashlib
import importlib.resources
import re

from aiohttp import web


def read() -> str:
    """Returns the page's HTML."""
    return importlib.resources.files("official_bert.server.listeners").joinpath("page.html").read_text(encoding="utf-8")


def _policy(html: str) -> str:
    """Returns a content security policy that lets only the page's own script and style run."""

    def digest(tag: str) -> str:
        match = re.search(f"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
        assert match is not None, tag
        return "'sha256-" + base64.b64encode(hashlib.sha256(match[1].encode("utf-8")).digest()).decode("ascii") + "'"

    return (
        f"default-src 'none'; connect-src 'self'; script-src {digest('script')}; style-src {digest('style')}; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def response() -> web.Response:
    """Returns the page as an HTTP response."""
    html = read()
    return web.Response(
        text=html,
        content_type="text/html",
        charset="utf-8",
        headers={
            "Content-Security-Policy": _policy(html),
            "X-Content-Type-Options": "nosniff",
            "Cache-Control": "no-cache",
        },
    )
