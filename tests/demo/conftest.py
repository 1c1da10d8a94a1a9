"""Fixtures of the browser tests; nothing is started until one asks for them."""

from .page_server import chromium, page_url, visit

__all__ = ["chromium", "page_url", "visit"]
