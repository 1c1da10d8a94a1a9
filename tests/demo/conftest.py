"""Fixtures of the browser tests; nothing is started until one asks for them."""

from .page_server import page_url, visit

__all__ = ["page_url", "visit"]
