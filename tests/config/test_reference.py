from golden import check_golden
from specs import ROOT

from marina.config.reference import render_reference


def test_the_page_of_fields_is_generated_from_the_spec() -> None:
    check_golden(render_reference(), ROOT / "docs/01-spec.md")
