import re
import time
from pathlib import Path

from running import Running, running
from tiny import make_tiny

from marina.loadtest.running.target import Target, read_start_phases

PHASES = ["supervisor", "checks", "java", "imports", "load", "warm_up", "first_ready"]
# How long it may take until a test hears that the server is ready.
_HEARD_S = 0.5


def phases_of(server: Running) -> dict[str, float]:
    page = server.get("/metrics")[1]
    found = re.findall(r'marina_start_phase_duration_seconds\{.*phase="(\w+)"\} ([\d.e-]+)', page)
    return {name: float(length) for name, length in found}


def test_the_phases_of_a_start_sum_to_the_whole_and_a_slow_load_is_seen_in_its_own(tmp_path: Path) -> None:
    spec, mar = make_tiny(tmp_path)
    begun = time.monotonic()
    with running(spec, mar=mar, log=tmp_path / "server.log", environment={"TINY_LOAD_S": "5"}) as server:
        whole_s = time.monotonic() - begun
        phases = phases_of(server)
        # What a calibration records.
        assert read_start_phases(Target(server.url, server.pages)) == phases
    assert sorted(phases) == sorted(PHASES)
    assert abs(sum(phases.values()) - whole_s) <= 0.05 * whole_s + _HEARD_S
    assert phases["load"] >= 5
    assert min(phases["java"], phases["imports"]) > 0
