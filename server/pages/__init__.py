"""The supervisor's own port."""

from server.pages.docs_page import Docs
from server.pages.door_pages import door_pages, start_page
from server.pages.pages import Answer, html_answer, json_answer, metrics_answer, serve_pages
from server.pages.schemas import body_types

__all__ = [
    "Answer", "Docs", "body_types", "door_pages", "html_answer", "json_answer", "metrics_answer", "serve_pages",
    "start_page",
]  # fmt: skip
