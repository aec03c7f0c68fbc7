"""Archives that others make with torch-model-archiver, of the models and handlers in TorchServe's examples."""

from pathlib import Path

import pytest
import torch
from model_archiver import ModelArchiver
from model_archiver.model_archiver_config import ModelArchiverConfig

from marina.archiver import staging
from marina.archiver.inspecting.inspect import inspect

_BASE = "class ImageClassifier({0}):\n    def __init__(self):\n        super(ImageClassifier, self).__init__({1})\n"
_MODELS = "from torchvision.models."
# As `examples/image_classifier`, `object_detector` and `image_segmenter` have them.
EXAMPLES = {
    "alexnet": _MODELS + "alexnet import AlexNet\n" + _BASE.format("AlexNet", ""),
    "densenet": "import re\nfrom collections import OrderedDict\n"
    + _MODELS
    + "densenet import DenseNet\n"
    + _BASE.format("DenseNet", "48, (6, 12, 36, 24), 96")
    + "    def load_state_dict(self, state_dict, strict=True):\n"
    "        pattern = re.compile(r'^(.*denselayer\\\\d+)$')\n        for key in list(state_dict.keys()):\n"
    "            state_dict[key] = state_dict.pop(key)\n        return super().load_state_dict(state_dict, strict)\n",
    "resnet": _MODELS + "resnet import BasicBlock, ResNet\n" + _BASE.format("ResNet", "BasicBlock, [2, 2, 2, 2]"),
    "squeezenet": _MODELS + "squeezenet import SqueezeNet\n" + _BASE.format("SqueezeNet", "'1_1'"),
    "vgg": _MODELS + "vgg import VGG, cfgs, make_layers\n" + _BASE.format("VGG", "make_layers(cfgs['A'])"),
    "maskrcnn": _MODELS
    + "detection.backbone_utils import resnet_fpn_backbone\n"
    + _MODELS
    + "detection.mask_rcnn import MaskRCNN\n"
    + _BASE.format("MaskRCNN", "resnet_fpn_backbone('resnet50', True), 91"),
    "fcn": _MODELS + "_utils import IntermediateLayerGetter\n" + _MODELS + "segmentation.fcn import FCN, FCNHead\n"
    "from torchvision.models import resnet\n" + _BASE.format("FCN", "resnet.resnet50(weights=None), FCNHead(2048, 21)"),
    "mnist": "import torch\nfrom torch import nn\nimport torch.nn.functional as F\nclass Net(nn.Module):\n"
    "    def __init__(self):\n        super(Net, self).__init__()\n        self.fc1 = nn.Linear(9216, 128)\n"
    "    def forward(self, x):\n        return F.log_softmax(self.fc1(torch.flatten(x, 1)), dim=1)\n",
}
MNIST_HANDLER = """from torchvision import transforms
from ts.torch_handler.image_classifier import ImageClassifier
from torch.profiler import ProfilerActivity
class MNISTDigitClassifier(ImageClassifier):
    image_processing = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.1307,), (0.3081,))])
    def __init__(self):
        super(MNISTDigitClassifier, self).__init__()
        self.profiler_args = {"activities": [ProfilerActivity.CPU], "record_shapes": True}
    def postprocess(self, data):
        return data.argmax(1).tolist()
"""


def archived(folder: Path, source: str, state: dict[str, object], *, form: str = "default", handler: str = "") -> Path:
    """The archive that torch-model-archiver makes of a model file, its weights and an example's other files."""
    files = {"model.py": source, "index_to_name.json": '{"0": ["n01440764", "tench"]}', "handler.py": handler}
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    torch.save(state, folder / "model.pth")
    chosen = str(folder / "handler.py") if handler else "image_classifier"
    ModelArchiver.generate_model_archive(
        ModelArchiverConfig(
            model_name=f"{folder.name}-packed", version="1.0", handler=chosen,
            model_file=str(folder / "model.py"), serialized_file=str(folder / "model.pth"), runtime="python",
            extra_files=str(folder / "index_to_name.json"), export_path=str(folder), archive_format=form, force=True,
            requirements_file=None, config_file=None,
        )
    )  # fmt: skip
    return folder / f"{folder.name}-packed.mar"


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_of_torchserve_is_sound(example: str, tmp_path: Path) -> None:
    report = inspect(archived(tmp_path, EXAMPLES[example], dict(torch.nn.Linear(8, 8).state_dict())))
    assert report.sound, report.as_text()


@pytest.mark.parametrize(("module", "name"), [*staging.BUILT_IN.values(), staging.ENCODER])
def test_the_entry_of_every_built_in_handler_is_sound(module: str, name: str, tmp_path: Path) -> None:
    entry = staging._ENTRY_TEXT.format(module=module, name=name)
    report = inspect(archived(tmp_path, EXAMPLES["mnist"], dict(torch.nn.Linear(8, 8).state_dict()), handler=entry))
    assert report.sound, report.as_text()


@pytest.mark.parametrize("form", ["default", "zip-store"])
def test_an_example_with_its_own_handler_is_sound_however_it_is_archived(form: str, tmp_path: Path) -> None:
    state = {
        "state_dict": dict(torch.nn.Linear(8, 8).state_dict()),
        "epoch": 3,
        "arch": "mnist",
        "best": torch.tensor(1.0),
    }
    report = inspect(archived(tmp_path, EXAMPLES["mnist"], state, form=form, handler=MNIST_HANDLER))
    assert report.sound, report.as_text()


def test_numbers_that_begin_like_a_pickle_are_not_pickles(tmp_path: Path) -> None:
    """Tries each byte at the beginning of a storage, before numbers of any type."""
    chance = torch.Generator().manual_seed(3)
    tails = [torch.randint(0, 256, (15,), dtype=torch.uint8, generator=chance) for _ in range(256)]
    state = {
        f"w{first}": torch.cat([torch.tensor([first], dtype=torch.uint8), tail]) for first, tail in enumerate(tails)
    }
    report = inspect(archived(tmp_path, EXAMPLES["mnist"], state))
    assert report.sound, report.as_text()
