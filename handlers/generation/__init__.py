"""Text, token by token: the handler and its rounds, OpenAI's forms, the queue for an engine's slots, and the engines.
Nothing here knows how a model is packaged."""

from handlers.generation.handler import TextHandler

__all__ = ["TextHandler"]
