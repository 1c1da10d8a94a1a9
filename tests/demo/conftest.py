"""Fixtures of the browser tests; nothing is started until one asks for them."""

from .page_server import ask, page_url, site, visit

__all__ = ["ask", "page_url", "site", "visit"]
