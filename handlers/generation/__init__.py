"""The `text` handler of language models: OpenAI's API, the queue for slots, stored conversations, cached answers, the
route to a small model, and the engines that write token by token. Encoders are in `handlers/encoder.py`."""

from handlers.generation.engine import Engine, NoToken, Sampling, Token
from handlers.generation.engines import make_engine
from handlers.generation.engines.compiled import LIBRARY
from handlers.generation.engines.llama import Llama
from handlers.generation.engines.shape import OtherFamily, UnknownModel, read_shape
from handlers.generation.engines.vllm_weights import fingerprint_files
from handlers.generation.engines.weights import check_weights, weight_files
from handlers.generation.handler import TextHandler
from handlers.generation.template import TemplateRefused
from handlers.generation.tokenizer import ModelTokenizer

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
