"""The handler under TorchServe's own loader, service and wire format: keeps `FakeContext` honest."""

import struct
from pathlib import Path

import pytest
import ts
from fakes import ONE_INPUT, TinyDouble, write_package
from ts.metrics.metric_cache_yaml_impl import MetricsCacheYamlImpl
from ts.model_loader import TsModelLoader

GOOD = b"[[0,1,2],[3,4,5]]"
ENTRY = "from marina.handlers.tensor import TensorHandler\n\n\nclass Service(TensorHandler):\n    pass\n"


@pytest.fixture
def service(tmp_path, monkeypatch):
    write_package(tmp_path, TinyDouble, ONE_INPUT)
    (tmp_path / "marina_entry.py").write_text(ENTRY)
    monkeypatch.syspath_prepend(str(tmp_path))
    metrics = MetricsCacheYamlImpl(str(Path(ts.__file__).parent / "configs" / "metrics.yaml"))
    metrics.initialize_cache()
    service = TsModelLoader().load("tiny", str(tmp_path), "marina_entry.py", None, 4, metrics_cache=metrics)
    service.set_cl_socket(None)
    return service


def arrived(request_id, body, *headers, name="body", content_type=""):
    """One request in the form in which `otf_message_handler._retrieve_request` returns it."""
    return {
        "requestId": bytearray(request_id, "ascii"),
        "headers": [{"name": bytearray(key, "ascii"), "value": bytearray(value, "ascii")} for key, value in headers],
        "parameters": [{"name": name, "contentType": content_type, "value": bytearray(body)}],
    }


class Frame:
    """Reads what `otf_message_handler.create_predict_response` wrote."""

    def __init__(self, data):
        self.data, self.position = bytes(data), 0

    def integer(self):
        (value,) = struct.unpack_from("!i", self.data, self.position)
        self.position += 4
        return value

    def text(self):
        length = self.integer()
        self.position += length
        return self.data[self.position - length : self.position].decode()

    def answers(self):
        assert (self.integer(), self.text()) == (200, "Prediction success")
        answers = []
        while self.data[self.position :] != struct.pack("!i", -1):
            request_id, content_type, status, phrase = self.text(), self.text(), self.integer(), self.text()
            headers = {self.text(): self.text() for _ in range(self.integer())}
            assert headers == {"content-type": content_type}
            answers.append((request_id, content_type, status, phrase, self.text()))
        return answers


def test_batch_of_good_and_bad_requests_goes_through_the_wire_format(service):
    batch = [
        arrived("a", GOOD, ("Content-Type", "application/json")),
        arrived("b", b"[", ("describe", "True"), ("explain", "True")),
        arrived("c", GOOD, name="upload", content_type="application/octet-stream"),
        arrived("d", b"", ("Accept", "application/x-npy")),
    ]
    answers = Frame(service.predict(batch)).answers()
    assert [(request_id, status, phrase) for request_id, _, status, phrase, _ in answers] == [
        ("a", 200, ""),
        ("b", 400, "Bad Request"),
        ("c", 200, ""),
        ("d", 400, "Bad Request"),
    ]
    assert {content_type for _, content_type, _, _, _ in answers} == {"application/json"}
    assert answers[0][4] == '{"doubled":[[0.0,2.0,4.0],[6.0,8.0,10.0]]}'
    assert (
        answers[3][4] == '{"error":"the body is empty","field":"body","got":"0 bytes","allowed":"1 to 4000000 bytes"}'
    )
