from pathlib import Path

import pytest
from running import running
from tiny import make_tiny
from tools import skip_unless_required
from waiting import ask, eventually, metric

from config.ports import bound_socket
from server import Exit

pytestmark = pytest.mark.e2e


def test_a_server_on_ipv6_counts_its_clients_and_not_itself_and_drains(tmp_path: Path) -> None:
    try:
        bound_socket("::1", 0).close()
    except OSError as err:
        skip_unless_required(f"there is no IPv6 here: {err}")
    spec, mar = make_tiny(tmp_path)
    with running(spec, mar=mar, log=tmp_path / "server.log", host="::1") as server:
        assert ask(server, b"{}") == 200
        # The own inferences before it was ready are in Java's log as well.
        eventually(lambda: metric(server, "inference_request_duration_seconds_count", code="200") == 1)
        assert metric(server, "ts_inference_requests_total") == 1
        assert server.stop() == Exit.DRAINED
    log = (tmp_path / "server.log").read_text(encoding="utf-8")
    assert f"at http://[::1]:{server.ports.inference}" in log
    assert log.count("POST /predictions/tiny 200") == 1
