import re
from pathlib import Path

import pytest
import torch
from specs import ROOT

from marina.archiver.graph import build_graph, examples, output_ports
from marina.archiver.sources import load_source
from marina.config.load import load_spec

PAGE = (ROOT / "docs/how-to/several-models.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_the_module_of_the_page_answers_with_the_outputs_of_both(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(blocks("python")[0], encoding="utf-8")
    (tmp_path / "spec.yaml").write_text(blocks("yaml")[1], encoding="utf-8")
    spec = load_spec(tmp_path / "spec.yaml")
    source = load_source(spec)
    rows = examples(spec, source, 2)
    ports = output_ports(spec, build_graph(spec, source, "fp32"), rows)
    assert {port.name: port.shape for port in ports} == {"kind": (3,), "size": (1,)}
    torch.export.export(source.network, rows)


@pytest.mark.parametrize("name", ["digits", "resnet50"])
def test_the_route_of_the_page_is_one_that_a_spec_takes(name: str, tmp_path: Path) -> None:
    text = f"name: {name}\nmodel: {{source: 'torchvision:resnet18', weights: random}}\n" + blocks("yaml")[0]
    (tmp_path / "spec.yaml").write_text(text, encoding="utf-8")
    route = load_spec(tmp_path / "spec.yaml").kubernetes.route
    assert route is not None
    assert route.gateway == "infra/public"
