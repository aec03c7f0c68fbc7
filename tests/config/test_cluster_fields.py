from pathlib import Path

import pytest
from specs import digits_spec

from marina.config.errors import InputError, SpecError
from marina.config.load import load_name
from marina.config.quantity import canonical, quantity


@pytest.mark.parametrize(
    ("written", "stored"),
    [("2048Mi", "2Gi"), ("1536Mi", "1536Mi"), ("1Mi", "1Mi"), ("0.5Gi", "512Mi"), ("0.5Ki", "512"), ("1000m", "1"),
     ("0.5", "500m"), ("2.0", "2"), ("12.5", "12500m"), ("1000", "1k"), ("1500M", "1500M"), ("1000M", "1G"),
     ("0.5m", "500u"), ("0", "0"), ("0Mi", "0"), ("1.5Gi", "1536Mi"), ("0.1", "100m"), ("100M", "100M"),
     ("1e3", "1e3"), ("1E4", "10e3"), ("1500e-3", "1500e-3"), ("12e0", "12"), (".5", "500m"), ("2.", "2")],
)  # fmt: skip
def test_a_quantity_is_written_as_the_server_stores_it(written: str, stored: str) -> None:
    assert canonical(written) == stored
    assert canonical("1536Mi") == "1536Mi"
    if stored[-1] not in "u":
        assert quantity(stored) == quantity(written)


def refusal(changes: dict[str, object]) -> str:
    with pytest.raises(SpecError) as caught:
        digits_spec(changes)
    return str(caught.value)


@pytest.mark.parametrize("url", ["https://me:secret@store.local/m.mar", "https://token@store.local/m.mar"])
def test_a_password_in_the_address_of_a_model_is_refused(url: str) -> None:
    said = refusal({"kubernetes.model": {"url": url}})
    assert "allowed: an address without user and password" in said
    assert "`https://…store.local/m.mar`" in said
    assert "secret" not in said
    assert "token" not in said


def test_the_signature_of_a_presigned_address_never_gets_into_a_spec() -> None:
    said = refusal({"kubernetes.model": {"url": "https://s/m.mar?X-Amz-Signature=abc"}})
    assert "got `https://s/m.mar?…`, allowed: an address" in said


@pytest.mark.parametrize(("surge", "unavailable"), [(0, 1), ("0%", 1), (1, 0), ("25%", 0), ("auto", 0)])
def test_a_rollout_that_may_add_no_pod_removes_one_first(surge: object, unavailable: int) -> None:
    assert digits_spec({"kubernetes.rollout.max_surge": surge}).kubernetes.rollout.max_unavailable == unavailable


@pytest.mark.parametrize("value", ["25", "-1%", "101%", "some", -1])
def test_a_number_of_pods_is_a_number_or_a_share(value: object) -> None:
    said = refusal({"kubernetes.rollout": {"max_surge": value}})
    assert "`kubernetes.rollout.max_surge`" in said
    assert "allowed: `auto`, a whole number, or a share such as `25%`" in said


@pytest.mark.parametrize("entry", ["kube-system", "kube-system:0", "Kube:53", "10.0.0.0/64:53", ":53"])
def test_a_name_server_is_a_namespace_or_a_network_with_a_port(entry: str) -> None:
    assert "`NAMESPACE:PORT` or `CIDR:PORT`" in refusal({"kubernetes.network": {"dns": [entry]}})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name: mine\nmodel: 5\nfoo: 1", ("mine", "marina")),
        ("name: mine\nkubernetes: {namespace: shop, x: 1}\nslo: {p99_ms: many}", ("mine", "shop")),
        ("name: mine\nname: other", "`name`: given twice, first on line 1"),
        ("name: mine\nkubernetes: [1]", "`kubernetes`: got `[1]`, allowed: a mapping"),
        ("kubernetes: {namespace: shop}", "`name`: missing"),
        ("name: mine\nslo: {p99_ms: [1", "not readable as YAML"),
        ("", "the file is empty"),
    ],
)
def test_a_broken_spec_still_names_the_deployment_or_says_how_to_name_it_without_a_spec(
    text: str, said: str | tuple[str, str], tmp_path: Path
) -> None:
    (tmp_path / "spec.yaml").write_text(text, encoding="utf-8")
    if isinstance(said, tuple):
        assert load_name(tmp_path / "spec.yaml") == said
        return
    with pytest.raises(InputError) as caught:
        load_name(tmp_path / "spec.yaml")
    assert said in caught.value.message
    assert "`model`" not in caught.value.message
    assert caught.value.hint == "a deployment can be named without a spec: NAME -n NAMESPACE"
