"""The cache of answers: in this worker's memory and, if the spec names one, in a Redis that all workers share.

A cache can only save work: if it fails, requests are answered as if there were none."""

from handlers.caching.backoff import Backoff
from handlers.caching.cache import AnswerCache, CacheControl, open_cache, parse_cache_control
from handlers.caching.repeats import answer_key, find_repeats, pack_answer
from handlers.caching.shared import redis_client

__all__ = [
    "AnswerCache",
    "Backoff",
    "CacheControl",
    "answer_key",
    "find_repeats",
    "open_cache",
    "pack_answer",
    "parse_cache_control",
    "redis_client",
]
