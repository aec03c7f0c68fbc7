"""The field of a spec about the files that a handler reads."""

import pytest
from specs import make_spec

from marina.config.errors import SpecError


@pytest.mark.parametrize(
    ("handler", "files", "message"),
    [
        ("image", ["./words.txt"], "not for `handler: image`, only for: a handler of your own"),
        (
            "./own.py:Own",
            ["./a/words.txt", "./b/words.txt"],
            "two files are called `words.txt`, and all are packed into one folder of the MAR",
        ),
    ],
)
def test_files_need_an_own_handler_and_different_names(handler: str, files: list[str], message: str) -> None:
    with pytest.raises(SpecError) as caught:
        make_spec({"model.handler": handler, "model.files": files})
    assert [(problem.field, problem.text) for problem in caught.value.problems] == [("model.files", message)]
