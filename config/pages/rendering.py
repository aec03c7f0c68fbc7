"""Pages from templates: a room's own template beside its code, and what all pages share beside this module."""

from __future__ import annotations

from pathlib import Path

_SHARED = Path(__file__).parent


def render_page(template: Path, **values: object) -> str:
    """A template's text; whatever is put into it is text, never markup."""
    # Here, because the supervisor needs the style alone.
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader([template.parent, _SHARED]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template(template.name).render(values)


def base_style() -> str:
    """The colours of every page, light and dark, and its type and margins, as CSS."""
    return (_SHARED / "base.css").read_text(encoding="utf-8")
