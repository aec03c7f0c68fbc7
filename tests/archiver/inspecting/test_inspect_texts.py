"""Plain texts whose bytes look like pickles by chance: `inspect` raises no false alarm."""

import pytest

from marina.archiver.inspecting.pickles import find_pickles

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
SORTED = [f"c{first}{second}{third}" for first in _LETTERS for second in _LETTERS for third in _LETTERS]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("the\ncall\nwikipedia\ncoords\nnow\nbecause\n", id="a vocabulary"),
        pytest.param("the\ncall\nwikipedia\ncoords\nnow\nRome\n.\n", id="a vocabulary with capitals"),
        pytest.param("\n".join(["a", *SORTED, "d", ""]), id="a sorted vocabulary"),
        pytest.param("it was printed later (in\n    Russian), and never again\n", id="prose"),
    ],
)
def test_a_text_is_not_taken_for_a_pickle(text: str) -> None:
    assert list(find_pickles("words.txt", text.encode())) == []


@pytest.mark.parametrize("module", ["os", "torch.hub", "mine"])
def test_the_same_lines_with_a_module_that_exists_are_reported(module: str) -> None:
    data = f"the\nc{module}\nload\ncoords\nnow\nRome\n".encode()
    assert [pickle.reasons for pickle in find_pickles("words.txt", data, frozenset({"mine"}))] == [
        (f"calls {module} load",)
    ]
