"""The network as a quick start has it: torchvision's ResNet-50, eager, with torchvision's own transform."""

import io
import os

import torch
from PIL import Image


def quick_start():
    """The network and its transform."""
    from marina.archiver.torchvision_import import import_torchvision

    # Its binaries may not fit the installed torch.
    import_torchvision()
    from torchvision import transforms
    from torchvision.models import resnet50

    torch.manual_seed(0)
    transform = transforms.Compose(
        [
            transforms.Resize(232),
            transforms.CenterCrop(224),
            transforms.ToTensor(),
            transforms.Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225]),
        ]
    )
    return resnet50().eval(), transform


def to_tensor(body, transform):
    """One photo, decoded by Pillow."""
    return transform(Image.open(io.BytesIO(body)).convert("RGB"))


def top_five(logits):
    """The answers for a batch."""
    probs, indices = torch.topk(torch.softmax(logits, dim=1), 5)
    return [
        {"top_indices": some.tolist(), "top_probs": most.tolist()} for some, most in zip(indices, probs, strict=True)
    ]


class Artifact:
    """Marina's compiled artifact with Marina's decoding, in another server; the package's folder is in `ARTIFACT`."""

    def __init__(self):
        from pathlib import Path

        from marina.handlers.artifact import load_artifact
        from marina.handlers.batching import Batcher
        from marina.handlers.pictures import decode_image
        from marina.handlers.record import load_record

        folder = Path(os.environ["ARTIFACT"])
        record = load_record(folder)
        torch.set_num_threads(record.threads)
        self._image, self._decode = record.image, decode_image
        self._batcher = Batcher(load_artifact(record, folder, torch.device("cpu")), record.inputs, record.outputs)
        self._batcher.warm_up()

    def pixels(self, body):
        """One photo, decoded."""
        return self._decode(body, self._image)

    def answers(self, pixels):
        """The answers for a batch of decoded photos."""
        rows = self._batcher.run([[photo] for photo in pixels]).rows
        return [{"top_indices": indices.tolist(), "top_probs": probs.tolist()} for probs, indices in rows]
