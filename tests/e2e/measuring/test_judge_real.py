"""The judge between servers that answer live traffic, asked as what Marina renders makes Argo Rollouts and Flagger ask.

PASS is asked for in `test_loadtest_judge_service.py`: it needs a machine on which two servers are certainly alike."""

import json
import threading
import urllib.error
import urllib.request
from contextlib import ExitStack
from typing import Any

import pytest
from conftest import Start
from k8s_plans import planned
from running import Running
from waiting import ask, eventually

from marina.k8s.manifests import render_objects, with_engine
from marina.loadtest.gating import Follower, LiveGate, LiveLimits, VerdictPage

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
LIMITS = LiveLimits(error_rate=0.05, regression=1.0)
GOOD, BAD = b'{"sleep_s": 0.005}', b'{"sleep_s": 0.005, "say": {"code": 500}}'
ROUTE = {"kubernetes.route": {"gateway": "edge/public"}}


def gate() -> LiveGate:
    made = LiveGate(LIMITS, minutes=1)
    made.window_s, made.seconds = 0.25, 20.0
    return made


def rendered(engine: Any, kind: str) -> dict[str, Any]:
    files = render_objects(with_engine(planned(ROUTE), engine, "image"))
    (found,) = (each for documents in files.values() for each in documents if each["kind"] == kind)
    spec: dict[str, Any] = found["spec"]
    return spec


def argo(port: int) -> str:
    """The phase of the measurement, as Argo's web provider finds it: the value at `jsonPath`, compared as the two
    conditions say."""
    metric = rendered("argo-rollouts", "AnalysisTemplate")["metrics"][0]
    assert metric["provider"]["web"]["jsonPath"] == "{$.result}"
    path = "/" + metric["provider"]["web"]["url"].split("/", 3)[3]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
        result = json.loads(answer.read())["result"]
    holds = {key: result == metric[key].split('"')[1] for key in ("successCondition", "failureCondition")}
    assert all(metric[key] == f'result == "{metric[key].split(chr(34))[1]}"' for key in holds)
    if holds["failureCondition"]:
        return "Failed"
    return "Successful" if holds["successCondition"] else "Inconclusive"


def flagger(port: int) -> dict[str, bool]:
    """What Flagger's webhooks hear: no for every status above 202."""
    heard = {}
    for hook in rendered("flagger", "Canary")["analysis"]["webhooks"]:
        payload = json.dumps({"name": "digits", "namespace": "marina", "phase": "WaitingPromotion", "checksum": "1"})
        path = "/" + hook["url"].split("/", 3)[3]
        asked = urllib.request.Request(f"http://127.0.0.1:{port}{path}", payload.encode(), method="POST")
        asked.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(asked, timeout=10) as answer:
                heard[hook["type"]] = answer.status <= 202
        except urllib.error.HTTPError as err:
            heard[hook["type"]] = err.code <= 202
    return heard


def sends(server: Running, stop: threading.Event, *, fails_each: int = 0) -> None:
    count = 0
    while not stop.is_set():
        count += 1
        ask(server, BAD if fails_each and count % fails_each == 0 else GOOD)


def test_argo_and_flagger_hear_of_failures_and_of_too_little_traffic(start_tiny: Start) -> None:
    old, failing, idle = (start_tiny() for _ in range(3))
    stop, threads, ports = threading.Event(), list[threading.Thread](), dict[str, int]()
    with ExitStack() as stack:
        for server, fails_each in ((old, 0), (failing, 3)):
            for _ in range(2):
                target = lambda server=server, fails_each=fails_each: sends(server, stop, fails_each=fails_each)  # noqa: E731
                threads.append(threading.Thread(target=target))
        pages = {}
        for name, new in (("failing", failing), ("idle", idle)):
            page = pages[name] = VerdictPage()
            served = page.serve("127.0.0.1", 0)
            stack.callback(served.server_close)
            stack.callback(served.shutdown)
            ports[name] = served.server_address[1]
            follower = Follower(gate, [old.pages], [new.pages], page)
            threads.append(threading.Thread(target=follower.follow, args=(stop, lambda _: None)))
        assert argo(ports["failing"]) == "Inconclusive"
        for thread in threads:
            thread.start()
            stack.callback(thread.join)
        stack.callback(stop.set)
        eventually(lambda: all(page.verdict for page in pages.values()), within_s=120)
        said = {name: (argo(port), flagger(port)) for name, port in ports.items()}
    no = {"confirm-promotion": False, "rollback": False}
    texts = {name: page.to_data()["text"] for name, page in pages.items()}
    assert said["failing"] == ("Failed", no | {"rollback": True}), texts
    assert said["idle"] == ("Inconclusive", no), texts
