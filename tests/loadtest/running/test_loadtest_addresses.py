"""The addresses of servers that a user names."""

import pytest

from marina.config.errors import InputError
from marina.loadtest.running.target import existing_server


def test_a_url_has_its_supervisor_ten_ports_above() -> None:
    assert existing_server("http://127.0.0.1:8080").supervisor == "http://127.0.0.1:8090"
    assert existing_server("http://127.0.0.1:8080", "http://y:1").supervisor == "http://y:1"


@pytest.mark.parametrize(
    "url",
    [
        "localhost:8080",
        "ftp://x",
        "http://",
        "http://x:99999",
        "nonsense",
        "http://[::1",
        "http://127.0.0.1/?a=1",
        "http://127.0.0.1/#a",
        "http://127.0.0.1/a b",
        "http://127.0.0.1/ ",
        "http://127.0.0.1/predictions/digits",
    ],
)
def test_a_wrong_url_is_an_error_with_an_example(url: str) -> None:
    with pytest.raises(InputError) as raised:
        existing_server(url)
    assert raised.value.message == f"`--url`: got `{url}`, allowed: an address such as `http://localhost:8080`"


def test_the_address_of_the_pages_is_checked_like_that_of_the_server() -> None:
    with pytest.raises(InputError, match="`--pages-url`: got `localhost:8090`, allowed: an address such as"):
        existing_server("http://127.0.0.1:8080", "localhost:8090")


def test_a_password_in_a_url_is_refused_and_not_shown() -> None:
    with pytest.raises(InputError, match=r"`--url`: got `http://…@127\.0\.0\.1:8080`, allowed: ") as raised:
        existing_server("http://me:secret@127.0.0.1:8080")
    assert "--header" in str(raised.value.hint)


def test_a_host_that_does_not_exist_is_named() -> None:
    with pytest.raises(InputError, match=r"but `nowhere\.invalid` cannot be found"):
        existing_server("http://nowhere.invalid:8080")


def test_a_host_that_cannot_be_a_name_is_an_error() -> None:
    with pytest.raises(InputError, match=r"`--against`: got `http://a\.\.b`, but `a\.\.b` cannot be found: "):
        existing_server("http://a..b", option="--against")


def test_a_url_in_capitals_is_the_same_server() -> None:
    assert existing_server("HTTPS://127.0.0.1:8443").url == "https://127.0.0.1:8443"
