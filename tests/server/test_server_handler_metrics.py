import pytest

from marina.server.watching import handler_metrics
from marina.server.watching.handler_metrics import HandlerMetrics

PAGE = """\
# HELP QueueTime TorchServe's
# TYPE QueueTime gauge
QueueTime{Level="Host",} 0.0
# HELP silent Never counted
# TYPE silent counter
# HELP Seen With a # HELP in its text
# TYPE Seen counter
Seen{word="# HELP x",} 1.0
# HELP marina_ready Taken
# TYPE marina_ready gauge
marina_ready{} 1.0
# HELP each One for each request
# TYPE each counter
each{id="a",} 1.0
each{id="b",} 1.0
"""
OURS = "# HELP marina_ready 1 while /ready answers 200.\n# TYPE marina_ready gauge\nmarina_ready 1.0\n"


def test_the_handlers_metrics_are_those_that_nobody_else_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handler_metrics, "MOST_SERIES", 1)
    said: list[str] = []
    selected = HandlerMetrics(frozenset({"QueueTime"}), say=said.append)
    for _ in range(2):
        page = selected.page(PAGE, OURS)
    assert page == '# HELP Seen With a # HELP in its text\n# TYPE Seen counter\nSeen{word="# HELP x",} 1.0\n'
    assert said == [
        "warning: the handler's metric marina_ready is not on /metrics: the name is taken by a metric of Marina's",
        "warning: the handler's metric each is not on /metrics: it has more than 1 series; a label must not name a "
        "request",
    ]
