"""The fields of a spec about the cache of answers."""

from typing import Any

import pytest
from specs import make_spec

from marina.config.errors import SpecError

ALLOWED = "allowed: an address such as `redis://HOST:6379/0`, without a password"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        pytest.param({"mb": 0}, "`serving.cache.mb`: got `0`, allowed: more than 0", id="no room"),
        pytest.param(
            {"redis": "redis://me:harbour@cache:6379"},
            f"`serving.cache.redis`: got `redis://…cache:6379`, {ALLOWED}",
            id="a password in an address, which is not said again",
        ),
        pytest.param({"redis": "cache:6379"}, f"`serving.cache.redis`: got `cache:6379`, {ALLOWED}", id="no scheme"),
    ],
)
def test_an_error_of_the_cache_says_what_is_allowed(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as caught:
        make_spec({"serving.cache": changes})
    assert str(caught.value) == f"spec.yaml:7: {message}"


def test_cached_answers_must_fit_into_the_memory_of_the_spec() -> None:
    changes = {"kubernetes.resources.memory": "2Gi", "serving.cache": {"mb": 100}}
    assert make_spec(changes).cache_bytes == 2 * 100_000_000
    with pytest.raises(
        SpecError, match=r"on top of Java, models and cached answers\n\nhint: less `cache.mb`, `max_request_mb`"
    ):
        make_spec(changes | {"serving.cache": {"mb": 800}})


@pytest.mark.parametrize("redis", ["redis://cache", "rediss://me@cache.tools.svc:6380/3", "redis://[fd00::7]:7000"])
def test_an_address_of_redis_is_taken(redis: str) -> None:
    assert make_spec({"serving.cache": {"redis": redis}}).serving.cache.redis == redis
