"""The names of torchvision's models, as lists: code that reads a spec does not import torchvision.

A test compares the lists with the installed torchvision."""

from marina.config.errors import nearest

_TEXT = (
    "alexnet convnext_base convnext_large convnext_small convnext_tiny densenet121 densenet161 densenet169 "
    "densenet201 efficientnet_b0 efficientnet_b1 efficientnet_b2 efficientnet_b3 efficientnet_b4 efficientnet_b5 "
    "efficientnet_b6 efficientnet_b7 efficientnet_v2_l efficientnet_v2_m efficientnet_v2_s googlenet inception_v3 "
    "maxvit_t mnasnet0_5 mnasnet0_75 mnasnet1_0 mnasnet1_3 mobilenet_v2 mobilenet_v3_large mobilenet_v3_small "
    "regnet_x_16gf regnet_x_1_6gf regnet_x_32gf regnet_x_3_2gf regnet_x_400mf regnet_x_800mf regnet_x_8gf "
    "regnet_y_128gf regnet_y_16gf regnet_y_1_6gf regnet_y_32gf regnet_y_3_2gf regnet_y_400mf regnet_y_800mf "
    "regnet_y_8gf resnet101 resnet152 resnet18 resnet34 resnet50 resnext101_32x8d resnext101_64x4d "
    "resnext50_32x4d shufflenet_v2_x0_5 shufflenet_v2_x1_0 shufflenet_v2_x1_5 shufflenet_v2_x2_0 squeezenet1_0 "
    "squeezenet1_1 swin_b swin_s swin_t swin_v2_b swin_v2_s swin_v2_t vgg11 vgg11_bn vgg13 vgg13_bn vgg16 "
    "vgg16_bn vgg19 vgg19_bn vit_b_16 vit_b_32 vit_h_14 vit_l_16 vit_l_32 wide_resnet101_2 wide_resnet50_2"
)
TORCHVISION_MODELS = frozenset(_TEXT.split())
# Models for other tasks. Unless told otherwise, those of the first list download weights for a part of them.
_WITH_BACKBONES_TEXT = (
    "deeplabv3_mobilenet_v3_large deeplabv3_resnet101 deeplabv3_resnet50 fasterrcnn_mobilenet_v3_large_320_fpn "
    "fasterrcnn_mobilenet_v3_large_fpn fasterrcnn_resnet50_fpn fasterrcnn_resnet50_fpn_v2 fcn_resnet101 fcn_resnet50 "
    "fcos_resnet50_fpn keypointrcnn_resnet50_fpn lraspp_mobilenet_v3_large maskrcnn_resnet50_fpn "
    "maskrcnn_resnet50_fpn_v2 retinanet_resnet50_fpn retinanet_resnet50_fpn_v2 ssd300_vgg16 "
    "ssdlite320_mobilenet_v3_large"
)
_OTHERS_TEXT = "mc3_18 mvit_v1_b mvit_v2_s r2plus1d_18 r3d_18 raft_large raft_small s3d swin3d_b swin3d_s swin3d_t"
WITH_BACKBONES, OTHERS = frozenset(_WITH_BACKBONES_TEXT.split()), frozenset(_OTHERS_TEXT.split())


def model_error(name: str) -> tuple[str, str] | None:
    """An error and a hint for a name that is not that of a classification model of torchvision; None if it is one."""
    plain = name.removeprefix("quantized_")
    if plain in TORCHVISION_MODELS:
        text = f"torchvision's `{name}` is already quantised, allowed: a model that Marina can compile"
        return None if plain == name else (text, f"source: torchvision:{plain} with `precision: int8`")
    if name in WITH_BACKBONES | OTHERS:
        backbone = ", weights_backbone=None" if name in WITH_BACKBONES else ""
        built = f"torchvision.models.get_model('{name}', weights=None{backbone})"
        return (
            f"torchvision's `{name}` does not classify pictures, so Marina does not know how to read its input and "
            "write its answers",
            f"in model.py: `def build(): return {built}`, then `source: ./model.py:build`",
        )
    close = nearest(name, TORCHVISION_MODELS) or "resnet18"
    return f"torchvision has no model `{name}`", f"source: torchvision:{close}"
