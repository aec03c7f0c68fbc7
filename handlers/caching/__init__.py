"""Answers that were given before: kept in this worker and, where the spec names one, in a Redis that all workers share.

A cache can only save work. If it fails, requests are answered as without a cache."""

from handlers.caching.cache import AnswerCache, Control, control_of, open_cache
from handlers.caching.pause import Pause
from handlers.caching.repeats import find_repeats, key_of, packed
from handlers.caching.shared import connect

__all__ = ["AnswerCache", "Control", "Pause", "connect", "control_of", "find_repeats", "key_of", "open_cache", "packed"]
