"""How others ask a model: KServe's V1, the Open Inference Protocol V2, TorchServe's `body`. Each turns one request into
rows for the model, and the rows' outputs into one answer in its own form."""

from handlers.protocols.choose import HEADER, exchange
from handlers.protocols.exchange import Exchange, Row, Tensor, check_rows, check_time
from handlers.protocols.v2 import rows_of

__all__ = ["HEADER", "Exchange", "Row", "Tensor", "check_rows", "check_time", "exchange", "rows_of"]
