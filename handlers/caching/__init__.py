"""The cache of answers: in this worker's memory and, if the spec names one, in a Redis that all workers share.

A cache can only save work: if it fails, requests are answered as if there were none."""

from marina.handlers.caching.backoff import Backoff
from marina.handlers.caching.cache import AnswerCache, CacheControl, open_cache, parse_cache_control
from marina.handlers.caching.repeats import answer_key, find_repeats, pack_answer
from marina.handlers.caching.shared import redis_client

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
