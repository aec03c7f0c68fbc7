"""The addresses of servers that a user names."""

import pytest

from marina.config.errors import InputError
from marina.loadtest.running.target import existing_server

LOCAL = "http://127.0.0.1:8080"


def test_a_url_has_its_supervisor_ten_ports_above() -> None:
    assert existing_server(LOCAL).supervisor == "http://127.0.0.1:8090"
    assert existing_server(LOCAL, "http://y:1").supervisor == "http://y:1"
    assert existing_server("HTTPS://127.0.0.1:8443").url == "https://127.0.0.1:8443"


WRONG = ["localhost:8080", "ftp://x", "http://", "http://x:99999", "nonsense", "http://[::1", f"{LOCAL}/?a=1"]
WRONG += [f"{LOCAL}/{end}" for end in ("#a", "a b", " ", "predictions/digits")]
ALLOWED = "allowed: an address such as `http://localhost:8080`"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        *(((url,), f"`--url`: got `{url}`, {ALLOWED}") for url in WRONG),
        ((LOCAL, "localhost:8090"), f"`--pages-url`: got `localhost:8090`, {ALLOWED}"),
        (("http://me:secret@127.0.0.1:8080",), f"`--url`: got `http://…@127.0.0.1:8080`, {ALLOWED}"),
        (("http://nowhere.invalid:8080",), "`nowhere.invalid` cannot be found"),
        (("http://a..b", None, "--against"), "`--against`: got `http://a..b`, but `a..b` cannot be found: "),
    ],
)
def test_a_wrong_address_is_an_error_with_an_example(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(InputError) as raised:
        existing_server(*words)
    assert message in raised.value.message
    assert ("--header" in str(raised.value.hint)) is ("secret" in words[0])
