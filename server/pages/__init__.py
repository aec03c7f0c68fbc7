"""The pages that the door answers on the inference port, beside inference itself."""

from marina.server.pages.door_pages import door_pages
from marina.server.pages.schemas import body_types

__all__ = ["body_types", "door_pages"]
