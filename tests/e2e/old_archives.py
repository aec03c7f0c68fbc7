"""Archives in the form of those that TorchServe's users have: what their handlers do, how they are packed, and
what is asked of them. Their networks are small."""

import base64
import io
import json
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import yaml
from archives import make_archive
from PIL import Image
from torch import nn

JSON = "application/json"
FORM = "multipart/form-data; boundary=cut"


@dataclass(frozen=True)
class Asked:
    """One request. `path` is what follows `/predictions/NAME`, or a whole path."""

    body: bytes
    content_type: str | None = None
    method: str = "POST"
    path: str = ""


@dataclass(frozen=True)
class Old:
    """An archive, and what is asked of it; requests of `together` are sent at the same time, to share a batch."""

    files: dict[str, str | bytes]
    asked: list[Asked]
    handler: str = "handler.py"
    config: dict[str, Any] = field(default_factory=dict)
    options: dict[str, str] = field(default_factory=dict)
    together: list[Asked] = field(default_factory=list)
    form: str = "default"

    @property
    def sample(self) -> Asked:
        """What it is packaged with."""
        return self.asked[0]


def picture(size: int = 28, mode: str = "RGB") -> bytes:
    buffer = io.BytesIO()
    Image.radial_gradient("L").resize((size, size)).convert(mode).save(buffer, "PNG")
    return buffer.getvalue()


def part(body: bytes, name: str = "data", kind: str = "image/png") -> bytes:
    head = f'--cut\r\nContent-Disposition: form-data; name="{name}"; filename="file"\r\nContent-Type: {kind}\r\n\r\n'
    return head.encode() + body + b"\r\n--cut--\r\n"


def saved(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def scripted(network: nn.Module) -> bytes:
    buffer = io.BytesIO()
    torch.jit.save(torch.jit.script(network.eval()), buffer)  # type: ignore[no-untyped-call]
    return buffer.getvalue()


def state_of(source: str, name: str) -> bytes:
    """The weights of a class in a model file, the same each time."""
    torch.manual_seed(0)
    space: dict[str, Any] = {}
    exec(source, space)
    return saved(space[name]().state_dict())


MNIST_NET = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 4, 3)
        self.fc1 = nn.Linear(4 * 26 * 26, 10)

    def forward(self, x):
        return torch.log_softmax(self.fc1(torch.relu(self.conv1(x)).flatten(1)), dim=1)
"""
MNIST_HANDLER = """
from torchvision import transforms
from ts.torch_handler.image_classifier import ImageClassifier
from torch.profiler import ProfilerActivity

class MNISTDigitClassifier(ImageClassifier):
    image_processing = transforms.Compose([
        transforms.Grayscale(), transforms.ToTensor(), transforms.Normalize((0.1307,), (0.3081,))
    ])

    def __init__(self):
        super().__init__()
        self.profiler_args = {"activities": [ProfilerActivity.CPU], "record_shapes": True}

    def postprocess(self, data):
        return data.argmax(1).tolist()
"""


def mnist() -> Old:
    image = picture()
    return Old(
        {"mnist_handler.py": MNIST_HANDLER, "mnist.py": MNIST_NET, "cnn.pt": state_of(MNIST_NET, "Net")},
        [
            Asked(image),
            Asked(image, "image/png"),
            Asked(part(image), FORM),
            Asked(json.dumps({"instances": 1}).encode(), JSON),
            Asked(b"no picture", "image/png"),
            Asked(image, method="PUT", path="/v1"),
            Asked(b"", method="GET", path="/v9"),
        ],
        handler="mnist_handler.py",
        options={"model_file": "mnist.py", "serialized_file": "cnn.pt"},
        config={"batchSize": 2, "maxBatchDelay": 200},
        together=[Asked(image), Asked(picture(28, "L"))],
    )


class Tiny(nn.Module):
    """Ten classes of any picture."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.conv = nn.Conv2d(3, 10, 7, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x).mean((2, 3))


def resnet() -> Old:
    image, names = picture(64), {str(at): [f"n{at:03}", f"class_{at}"] for at in range(10)}
    encoded = base64.b64encode(image).decode()
    return Old(
        {"resnet.pt": scripted(Tiny()), "index_to_name.json": json.dumps(names)},
        [
            Asked(image),
            Asked(part(image), FORM),
            Asked(json.dumps({"data": encoded}).encode(), JSON),
            Asked(image, path="/explanations/{name}"),
            Asked(json.dumps({"instances": [{"data": encoded}]}).encode(), JSON, path="/v1/models/{name}:predict"),
        ],
        handler="image_classifier",
        options={"serialized_file": "resnet.pt"},
        config={"batchSize": 4, "maxBatchDelay": 200, "handler": {"own": "key"}},
        together=[Asked(image), Asked(picture(80)), Asked(b"no picture")],
        form="tgz",
    )


DETECTOR_NET = """
import torch
from torch import nn

class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([0.2, 0.3, 0.7, 0.9]))

    def forward(self, images):
        found = []
        for image in images:
            boxes = torch.stack([self.scale, self.scale / 2]) * image.shape[-1]
            scores = torch.stack([image.mean() + 0.5, image.mean() - 1])
            found.append({"boxes": boxes, "labels": torch.tensor([1, 2]), "scores": scores})
        return found
"""


def detector() -> Old:
    image = picture(32)
    return Old(
        {
            "model.py": DETECTOR_NET,
            "weights.pt": state_of(DETECTOR_NET, "Detector"),
            "index_to_name.json": json.dumps({"1": "person", "2": "dog"}),
        },
        [Asked(image), Asked(part(image), FORM), Asked(b"no picture")],
        handler="object_detector",
        options={"model_file": "model.py", "serialized_file": "weights.pt"},
    )


class Segmented(nn.Module):
    """Three classes of each pixel, as torchvision's networks return them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.conv = nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"out": self.conv(x)}


def segmenter() -> Old:
    return Old(
        {"fcn.pt": scripted(Segmented())},
        [Asked(picture(64)), Asked(part(picture(64)), FORM)],
        handler="image_segmenter",
        options={"serialized_file": "fcn.pt"},
    )


TEXT_NET = """
import torch
from torch import nn

class TextClassificationModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.EmbeddingBag(40, 8)
        self.fc = nn.Linear(8, 2)

    def forward(self, text, offsets):
        return self.fc(self.embedding(text, offsets))
"""


def text() -> Old:
    words = ["a", "good", "film", "a good", "good film", "bad", "bad film", "a bad"]
    vocabulary = {word: at for at, word in enumerate(words)}
    return Old(
        {
            "model.py": TEXT_NET,
            "model.pt": state_of(TEXT_NET, "TextClassificationModel"),
            "source_vocab.pt": saved(vocabulary),
            "index_to_name.json": json.dumps({"0": "Negative", "1": "Positive"}),
        },
        [
            Asked(b"A good film"),
            Asked(b"a <b>bad</b> film", "text/plain"),
            Asked(part(b"a bad film", kind="text/plain"), FORM),
            Asked(b"data=a+bad+film", "application/x-www-form-urlencoded"),
            Asked(b"unheard-of words"),
        ],
        handler="text_classifier",
        options={"model_file": "model.py", "serialized_file": "model.pt"},
    )


SEQUENCE_HANDLER = """
import ast, json, logging, os
import torch
from ts.torch_handler.base_handler import BaseHandler
from encoding import Encoder

logger = logging.getLogger(__name__)

class TransformersSeqClassifierHandler(BaseHandler):
    def initialize(self, ctx):
        self.manifest = ctx.manifest
        model_dir = ctx.system_properties.get("model_dir")
        self.model = torch.jit.load(os.path.join(model_dir, self.manifest["model"]["serializedFile"]))
        with open(os.path.join(model_dir, "setup_config.json")) as file:
            self.setup_config = json.load(file)
        self.encode = Encoder(os.path.join(model_dir, "Transformer_model", "vocab.txt"))
        with open("index_to_name.json") as file:
            self.mapping = json.load(file)
        self.batch = ctx.model_yaml_config["handler"]["padding"]
        self.initialized = True

    def preprocess(self, requests):
        rows = []
        for data in requests:
            input_text = data.get("data")
            if input_text is None:
                input_text = data.get("body")
            if isinstance(input_text, (bytes, bytearray)):
                input_text = input_text.decode("utf-8")
            if isinstance(input_text, dict):
                input_text = input_text["text"]
            logger.info("Received text: '%s'", input_text)
            rows.append(self.encode(input_text, int(self.setup_config["max_length"]), self.batch))
        return torch.tensor(rows)

    def inference(self, input_batch):
        return self.model(input_batch).argmax(1).tolist()

    def postprocess(self, inference_output):
        return [self.mapping[str(label)] for label in inference_output]
"""
SEQUENCE_ENCODING = """
class Encoder:
    def __init__(self, file):
        with open(file) as lines:
            self.words = {word.strip(): at for at, word in enumerate(lines)}

    def __call__(self, text, length, pad):
        ids = [self.words[word] for word in text.lower().split()][:length]
        return ids + [pad] * (length - len(ids))
"""


class Sequence(nn.Module):
    """Two classes of a text of eight words."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.embedding = nn.Embedding(8, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 16, batch_first=True)
        self.fc = nn.Linear(16, 2)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.fc(self.layer(self.embedding(ids))[:, 0])


def sequence() -> Old:
    words = ["pad", "the", "cat", "sat", "on", "mat", "dog"]
    return Old(
        {
            "Transformer_handler_generalized.py": SEQUENCE_HANDLER,
            "encoding.py": SEQUENCE_ENCODING,
            "traced_model.pt": scripted(Sequence()),
            "setup_config.json": json.dumps({"mode": "sequence_classification", "max_length": "8"}),
            "index_to_name.json": json.dumps({"0": "Not Accepted", "1": "Accepted"}),
            "Transformer_model/vocab.txt": "\n".join(words),
        },
        [
            Asked(b"The cat sat on the mat"),
            Asked(json.dumps({"text": "the dog sat"}).encode(), JSON),
            Asked(json.dumps({"data": "the dog sat"}).encode(), JSON),
            Asked(part(b"the dog", kind="text/plain"), FORM),
            Asked(b"a word that it does not know"),
        ],
        handler="Transformer_handler_generalized.py",
        options={"serialized_file": "traced_model.pt"},
        config={"batchSize": 4, "maxBatchDelay": 200, "handler": {"padding": 0}},
        together=[Asked(b"the cat"), Asked(b"the dog sat on the mat"), Asked(b"mat")],
    )


AUDIO_HANDLER = """
import io, os, sys, wave, zipfile
import torch
from ts.torch_handler.base_handler import BaseHandler

class WaveGlowSpeechSynthesizer(BaseHandler):
    def __init__(self):
        self.initialized = False

    def initialize(self, ctx):
        model_dir = ctx.system_properties.get("model_dir")
        with zipfile.ZipFile(os.path.join(model_dir, "tacotron.zip")) as packed:
            packed.extractall(model_dir)
        from tacotron.wave_net import Wave
        self.wave = Wave()
        self.wave.load_state_dict(torch.load(os.path.join(model_dir, "waveglow.pth"), map_location="cpu"))
        self.initialized = True

    def preprocess(self, data):
        text = data[0].get("data") or data[0].get("body")
        text = text if isinstance(text, (bytes, bytearray)) else text.encode()
        return torch.tensor([float(char) for char in text])

    def inference(self, data):
        with torch.no_grad():
            return self.wave(data)

    def postprocess(self, inference_output):
        buffer = io.BytesIO()
        with wave.open(buffer, "wb") as out:
            out.setnchannels(1), out.setsampwidth(2), out.setframerate(22050)
            out.writeframes((inference_output * 32000).short().numpy().tobytes())
        return [buffer.getvalue()]
"""
AUDIO_NET = """
import torch
from torch import nn

class Wave(nn.Module):
    def __init__(self):
        super().__init__()
        self.pitch = nn.Parameter(torch.tensor(0.1))

    def forward(self, text):
        return torch.sin(torch.arange(2000) * self.pitch * text.mean() / 100)
"""


def audio() -> Old:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("tacotron/__init__.py", "")
        archive.writestr("tacotron/wave_net.py", AUDIO_NET)
    return Old(
        {
            "waveglow_handler.py": AUDIO_HANDLER,
            "tacotron.zip": packed.getvalue(),
            "waveglow.pth": state_of(AUDIO_NET, "Wave"),
        },
        [Asked(b"Hello there"), Asked(part(b"Hello", kind="text/plain"), FORM), Asked(b"")],
        handler="waveglow_handler.py",
        form="no-archive",
    )


METRICS_HANDLER = """
import json
from ts.metrics.metric_type_enum import MetricTypes
from ts.torch_handler.base_handler import BaseHandler

class Counting(BaseHandler):
    def initialize(self, context):
        self.initialized = True
        self.context = context
        self.inferences = context.metrics.add_metric_to_cache(
            metric_name="InferenceRequests", unit="count", dimension_names=["ModelName"],
            metric_type=MetricTypes.COUNTER,
        )

    def preprocess(self, data):
        metrics = self.context.metrics
        metrics.add_size("SizeOfImage", len(data[0]["body"]) / 1024, None, "kB")
        metrics.add_counter("Asked", len(data), None)
        self.inferences.add_or_update(value=len(data), dimension_values=[self.context.model_name])
        return [len(row["body"]) for row in data]

    def inference(self, data):
        return [{"bytes": size, "dir": self.context.system_properties["batch_size"]} for size in data]

    def postprocess(self, data):
        return data
"""


def counting() -> Old:
    return Old(
        {"handler.py": METRICS_HANDLER},
        [Asked(b"abc"), Asked(b"abcd", "text/plain"), Asked(b"1" * 5000), Asked(b"{}", JSON)],
    )


STREAM_HANDLER = """
from ts.handler_utils.utils import send_intermediate_predict_response

def handle(data, context):
    if data is None:
        return None
    for number in range(4):
        pieces = [f"piece {number}, "] * len(data)
        send_intermediate_predict_response(pieces, context.request_ids, "Intermediate", 200, context)
    if data[0].get("body") == b"fail":
        raise ValueError("in the middle")
    return [f"of {len(row['body'])}" for row in data]
"""


def stream() -> Old:
    return Old({"stream_handler.py": STREAM_HANDLER}, [Asked(b"text")], handler="stream_handler:handle")


STATUS_HANDLER = """
import json
from ts.utils.util import PredictionException

class Statuses:
    def initialize(self, context):
        self.properties = context.system_properties

    def handle(self, data, context):
        answers = []
        for index, row in enumerate(data):
            wanted = row.get("body")
            if isinstance(wanted, (bytes, bytearray)):
                wanted = json.loads(wanted)
            if wanted.get("raise"):
                raise PredictionException("Some Prediction Error", wanted["raise"])
            if wanted.get("list"):
                return wanted["list"]
            context.set_response_status(code=wanted.get("status", 200), phrase="As asked", idx=index)
            context.set_response_header(index, "X-Asked", str(context.get_request_header(index, "X-Of")))
            if wanted.get("kind"):
                context.set_response_content_type(index, wanted["kind"])
            answers.append(wanted.get("answer", "plain text"))
        return answers
"""


def ask(**wanted: Any) -> Asked:
    return Asked(json.dumps(wanted).encode(), JSON)


def empty() -> Old:
    return Old({"handler.py": STATUS_HANDLER}, [ask(status=204, answer=""), ask(status=202)])


def statuses() -> Old:
    return Old(
        {"handler.py": STATUS_HANDLER},
        [
            ask(status=201),
            ask(),
            Asked(b'{"answer": [1, 2]}'),
            ask(status=404),
            ask(status=503, answer={"error": "busy"}),
            ask(status=201, kind="application/x-own", answer="own"),
            ask(**{"raise": 509}),
            ask(list={"not": "a list"}),
            ask(list=[1, 2, 3]),
            Asked(b"not json", JSON),
        ],
        config={"batchSize": 4, "maxBatchDelay": 200},
        together=[ask(status=200, answer=1), ask(status=422, answer="two"), ask(answer={"three": 3.5})],
    )


OLD_ARCHIVES: dict[str, Callable[[], Old]] = {
    made.__name__: made
    for made in (mnist, resnet, detector, segmenter, text, sequence, audio, counting, stream, empty, statuses)
}


def archive_of(folder: Path, kind: str, old: Old) -> Path:
    """The archive in a folder, as torch-model-archiver makes it."""
    options: dict[str, Any] = {"handler": old.handler, "form": old.form, "config": old.config or None, **old.options}
    return make_archive(folder, old.files, name=f"Old_{kind}", **options)


def write_spec(folder: Path, kind: str, old: Old, archive: Path, **serving: Any) -> Path:
    """A spec that adopts the archive, with the first of its requests as the sample."""
    (folder / "body").write_bytes(old.sample.body)
    batch, delay_ms = old.config.get("batchSize", 1), old.config.get("maxBatchDelay", 100)
    settings = {"workers": 1, "threads": 1, "max_batch": batch, "max_batch_delay_ms": delay_ms}
    spec = {
        "name": f"old-{kind}",
        "model": {"source": str(archive), "handler": "archive", "name": f"Old_{kind}", "version": "v1"},
        "serving": {**settings, "drain_propagation_s": 0, **serving},
        "load": {"sample": "./body"} | ({"content_type": old.sample.content_type} if old.sample.content_type else {}),
    }
    file = folder / "spec.yaml"
    file.write_text(yaml.safe_dump(spec), encoding="utf-8")
    return file
