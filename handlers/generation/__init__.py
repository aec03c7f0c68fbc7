"""The `text` handler of language models: OpenAI's API, the queue for slots, stored conversations, cached answers, the
route to a small model, and the engines that write token by token. Encoders are in `handlers/encoder.py`."""

from marina.handlers.generation.engine import Engine, NoToken, Sampling, Token
from marina.handlers.generation.engines import make_engine
from marina.handlers.generation.engines.compiled import LIBRARY
from marina.handlers.generation.engines.llama import Llama
from marina.handlers.generation.engines.shape import OtherFamily, UnknownModel, read_shape
from marina.handlers.generation.engines.vllm_weights import fingerprint_files
from marina.handlers.generation.engines.weights import check_weights, weight_files
from marina.handlers.generation.handler import TextHandler
from marina.handlers.generation.template import TemplateRefused
from marina.handlers.generation.tokenizer import ModelTokenizer

__all__ = [
    "LIBRARY",
    "Engine",
    "Llama",
    "ModelTokenizer",
    "NoToken",
    "OtherFamily",
    "Sampling",
    "TemplateRefused",
    "TextHandler",
    "Token",
    "UnknownModel",
    "check_weights",
    "fingerprint_files",
    "make_engine",
    "read_shape",
    "weight_files",
]
