"""Renders pages from templates: each room has its own beside its code, and shared parts are beside this module."""

from pathlib import Path

_SHARED = Path(__file__).parent


def render_template(template: Path, **values: object) -> str:
    """Renders a template; all values are escaped, so that they are text and never markup."""
    # Imported here, because the supervisor needs only the style.
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
    """The CSS that all pages share: colours, light and dark, fonts and margins."""
    return (_SHARED / "base.css").read_text(encoding="utf-8")
