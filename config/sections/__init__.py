"""The sections of a spec: types, defaults, and the meaning of each field, one module for each section or part of one.

`kubernetes.pod` and `kubernetes.patches` are in `extension`, `kubernetes.model` is in `store`. `section` has the base
class of all sections, and the types that several of them use."""

from config.sections.cost import Cost
from config.sections.encoding import Encoding
from config.sections.extension import Patch, Pod
from config.sections.kubernetes import Kubernetes
from config.sections.load import Load
from config.sections.model import Dtype, Image, Model, Precision, Tensor
from config.sections.scaling import Scaling
from config.sections.section import BAD_KEY, PATTERNS, Name, Section, Version
from config.sections.serving import Serving
from config.sections.slo import Slo
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
