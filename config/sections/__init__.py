"""The sections of a spec: types, defaults, and the meaning of each field, one module for each topic.

`slo` and `load` are in `objective`, `scaling` and `kubernetes` in `deployment`, but `kubernetes.pod` and
`kubernetes.patches` in `extension`, and `kubernetes.model` in `store`. The other modules have the name of their section
or of its part. `section` has their base class, and the types that several of them use."""

from config.sections.cost import Cost
from config.sections.deployment import Kubernetes, Scaling
from config.sections.encoding import Encoding
from config.sections.extension import Patch, Pod
from config.sections.model import Dtype, Image, Model, Precision, Tensor
from config.sections.objective import Load, Slo
from config.sections.section import BAD_KEY, PATTERNS, Name, Section, Version
from config.sections.serving import Serving
from config.sections.store import ModelCache
from config.sections.text import Text
from config.sections.varying import Varying
from config.sections.vllm import Vllm

__all__ = [
    "BAD_KEY",
    "PATTERNS",
    "Cost",
    "Dtype",
    "Encoding",
    "Image",
    "Kubernetes",
    "Load",
    "Model",
    "ModelCache",
    "Name",
    "Patch",
    "Pod",
    "Precision",
    "Scaling",
    "Section",
    "Serving",
    "Slo",
    "Tensor",
    "Text",
    "Varying",
    "Version",
    "Vllm",
]
