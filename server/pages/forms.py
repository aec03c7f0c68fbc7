"""What a handler of the user's own says that it takes and gives, as parts of the page to try the model."""

from __future__ import annotations

import html
import json

from config.record import Form, Record


def forms(record: Record) -> str:
    """A part for each of the two that is declared."""
    named = (("Takes", record.takes), ("Gives", record.gives))
    return "\n  ".join(_part(title, form) for title, form in named if form is not None)


def _part(title: str, form: Form) -> str:
    shown = [json.dumps(form.json_schema, indent=2)] if form.json_schema else []
    if form.example is not None:
        shown.append(form.example if isinstance(form.example, str) else json.dumps(form.example, indent=2))
    blocks = "".join(f"<pre><code>{html.escape(text)}</code></pre>" for text in shown)
    return f'<div class="snippet"><h3>{title} <code>{html.escape(form.content_type)}</code></h3>{blocks}</div>'
