"""The sections of a spec: types, defaults, and the meaning of each field, one module for each section or part of one.

`kubernetes.pod` and `kubernetes.patches` are in `extension`, `kubernetes.model` is in `store`. `section` has the base
class of all sections, and the types that several of them use."""

from marina.config.sections.cost import Cost
from marina.config.sections.encoding import Encoding
from marina.config.sections.extension import Patch, Pod
from marina.config.sections.gateway import Auth
from marina.config.sections.kubernetes import DEFAULT_GATE, Kubernetes
from marina.config.sections.load import Load
from marina.config.sections.model import (
    HANDLERS,
    KINDS,
    SAVED,
    AnyModel,
    Dtype,
    Encoder,
    Model,
    Precision,
    Tensor,
    kind_of,
)
from marina.config.sections.picture import Activation, Detection, Image, MaskSize, PictureTask
from marina.config.sections.scaling import Scaling
from marina.config.sections.section import LARGEST, PATTERNS, REGISTRY_PATTERN, Name, Positive, Section, Version
from marina.config.sections.serving import Serving, Verify
from marina.config.sections.slo import Slo
from marina.config.sections.text import Text
from marina.config.sections.tracing import Tracing
from marina.config.sections.varying import Varying
from marina.config.sections.vllm import Vllm

__all__ = [
    "DEFAULT_GATE",
    "HANDLERS",
    "KINDS",
    "LARGEST",
    "PATTERNS",
    "REGISTRY_PATTERN",
    "SAVED",
    "Activation",
    "AnyModel",
    "Auth",
    "Cost",
    "Detection",
    "Dtype",
    "Encoder",
    "Encoding",
    "Image",
    "Kubernetes",
    "Load",
    "MaskSize",
    "Model",
    "Name",
    "Patch",
    "PictureTask",
    "Pod",
    "Positive",
    "Precision",
    "Scaling",
    "Section",
    "Serving",
    "Slo",
    "Tensor",
    "Text",
    "Tracing",
    "Varying",
    "Verify",
    "Version",
    "Vllm",
    "kind_of",
]
