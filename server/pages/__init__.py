"""The supervisor's pages, on a port of their own, and those that the door answers."""

from marina.server.pages.docs_page import Docs
from marina.server.pages.door_pages import door_pages, start_page
from marina.server.pages.pages import PageResponse, html_response, json_response, metrics_response, serve_pages
from marina.server.pages.schemas import body_types

__all__ = [
    "Docs",
    "PageResponse",
    "body_types",
    "door_pages",
    "html_response",
    "json_response",
    "metrics_response",
    "serve_pages",
    "start_page",
]  # fmt: skip
