"""Lets TorchServe's stock vision handlers import torchvision, whose binaries may not fit the installed torch.

Python runs this at the start of every process that has this folder on its path; only workers are changed.
"""

import sys

if any("model_service_worker" in word for word in sys.orig_argv):
    from marina.archiver.torchvision_import import import_torchvision

    import_torchvision()
