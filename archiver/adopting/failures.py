"""What to do when an archive's handler does not start, or does not answer the sample."""

import re

from marina.archiver.requirements import hint_for_missing
from marina.config.spec import Spec

_MISSING = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'")

# What torch says where it would have to unpickle more than tensors, also for a TorchScript that `torch.load` opens.
_PICKLED = ("Weights only load failed", "Cannot use ``weights_only=True``")


def failure_hint(spec: Spec, log: str) -> str | None:
    """What to type, from what the worker printed; None if nothing is known about that failure."""
    missing = [name.partition(".")[0] for name in _MISSING.findall(log) if not name.startswith("ts.torch_handler.")]
    if "torchtext" in missing:
        return (
            "torchtext does not load beside this torch; where it is installed, save the vocabulary as a plain "
            "dictionary: `torch.save(dict(vocab.get_stoi()), 'source_vocab.pt')`"
        )
    if missing:
        return hint_for_missing(spec, missing[0])
    if any(words in log for words in _PICKLED) and not spec.model.trust_pickle:
        return (
            f"marina package --trust-pickle {spec.file}, if you trust who made these files: each worker then unpickles "
            "them, which runs whatever code is in them; or save the weights alone, with `model.state_dict()`"
        )
    return None
