"""Requests to one API server, with retries. It knows addresses and answers, not objects."""

import time
import warnings
from collections.abc import Callable
from typing import Any

import urllib3
from kubernetes import client
from kubernetes.dynamic.exceptions import DynamicApiError

from marina.config.errors import ClusterError
from marina.config.request_headers import UNCACHED
from marina.k8s.cluster.api_errors import ApiError, api_error, describe_unreachable, may_recover

CONNECT_S, READ_S = 10.0, 60.0
_TRIES = 5
_LONGEST_PAUSE_S = 10.0
# How long a server that has answered before may be out of reach, such as while it restarts, and how often it is tried.
_AWAY_S, _AWAY_PAUSE_S = 60.0, 2.0


class Transport:
    """The connection to one API server. `with_retries` retries transient errors: 429, 5xx, a dropped connection."""

    def __init__(self, settings: client.Configuration, context: str, *, pause: Callable[[float], None] = time.sleep):
        # Otherwise urllib3 would retry some requests by itself, and hide the server's answers.
        settings.retries = False
        if not settings.verify_ssl:
            # `connect` warns once; urllib3 would warn at every request.
            warnings.filterwarnings("ignore", category=urllib3.exceptions.InsecureRequestWarning)
        self.context = context
        self.server = str(settings.host)
        self.settings = settings
        self.api = client.ApiClient(settings)
        self._pause = pause
        self._has_answered = False

    def request(
        self, method: str, path: str, body: bytes | None = None, *, content_type: str = "", timeout_s: float = READ_S
    ) -> urllib3.BaseHTTPResponse:
        """Sends one request, once, and returns any answer. Raises ClusterError if there is none."""
        headers = UNCACHED | ({"Content-Type": content_type} if content_type else {})
        _, url, headers, _, _ = self.api.param_serialize(
            method, path, header_params=headers, auth_settings=["BearerToken"]
        )
        timeout = urllib3.Timeout(connect=CONNECT_S, read=timeout_s)
        try:
            return self.api.rest_client.pool_manager.request(method, url, body=body, headers=headers, timeout=timeout)
        except urllib3.exceptions.HTTPError as err:
            raise self.unreachable(err) from err

    def with_retries(self, send: Callable[[], Any], *, races: bool = False) -> Any:
        """The result of `send`, after up to five tries if its errors are transient; with `races`, also after a lost
        race. A server that has answered before is tried for a minute."""
        attempt, waited_s, began = 0, 0.0, time.monotonic()
        while True:
            attempt += 1
            try:
                result = send()
            except DynamicApiError as err:
                error: ClusterError = translated(err)
            except ClusterError as err:
                error = err
            except urllib3.exceptions.HTTPError as err:
                error = self.unreachable(err)
                error.__cause__ = err
            else:
                self._has_answered = True
                return result
            self._has_answered |= isinstance(error, ApiError)
            is_away = self._has_answered and isinstance(error.__cause__, urllib3.exceptions.HTTPError)
            has_time = is_away and max(waited_s, time.monotonic() - began) < _AWAY_S
            if not _may_succeed(error, races=races) or (attempt >= _TRIES and not has_time):
                raise error
            asked_s = error.retry_after_s if isinstance(error, ApiError) else None
            longest_s = _AWAY_PAUSE_S if is_away else _LONGEST_PAUSE_S
            pause_s = min(longest_s, asked_s if asked_s is not None else 0.1 * 2**attempt)
            waited_s += pause_s
            self._pause(pause_s)

    def unreachable(self, err: Exception) -> ClusterError:
        """The error for a request that got no answer."""
        text, hint = describe_unreachable(err)
        return ClusterError(f"{self.server} (context `{self.context}`): {text}", hint=hint)


def translated(err: DynamicApiError) -> ApiError:
    """An error of the dynamic client as an ApiError."""
    body = err.body.encode() if isinstance(err.body, str) else (err.body or b"")
    return api_error(err.status or 0, err.reason or "", body, err.headers or {})


def _may_succeed(error: ClusterError, *, races: bool) -> bool:
    if isinstance(error, ApiError):
        return error.is_transient or (races and error.lost_race)
    return may_recover(error)
