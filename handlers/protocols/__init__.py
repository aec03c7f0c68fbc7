"""Protocols of other servers: KServe's V1, the Open Inference Protocol V2, TorchServe's `body`. Each turns a request
into rows for the model, and the outputs for these rows into an answer in its own form."""

from marina.handlers.protocols.choose import HEADER, read_exchange
from marina.handlers.protocols.exchange import Exchange, NamedTensor, Row, check_row_count, check_time
from marina.handlers.protocols.v2 import tensor_rows

__all__ = ["HEADER", "Exchange", "NamedTensor", "Row", "check_row_count", "check_time", "read_exchange", "tensor_rows"]
