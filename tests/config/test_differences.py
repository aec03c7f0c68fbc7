from specs import ROOT, make_spec

from marina.config.differences import differences

ARCHIVE = {"model": {"source": "./old.mar", "handler": "archive", "name": "BERT_Seq.v1"}, "load.sample": "x.json"}


def test_an_archives_owner_is_told_what_is_otherwise_with_the_specs_own_values() -> None:
    spec = make_spec(
        {**ARCHIVE, "serving": {"max_batch": 8, "max_request_mb": 6.5}, "kubernetes.network.egress": ["10.0.0.0/8:443"]}
    )
    found = differences(spec)
    assert "/predictions/BERT_Seq.v1" in found["gRPC"]
    assert "6,500,000 bytes" in found["limits"]
    assert "up to 8" in found["batches"]
    assert "only 10.0.0.0/8:443" in found["network"]
    assert "batches" not in differences(make_spec({**ARCHIVE, "serving": {"max_batch": 1}}))
    assert not differences(make_spec())


def test_the_page_for_those_who_come_from_torchserve_explains_each_difference() -> None:
    page = (ROOT / "docs/how-to/migrate.md").read_text(encoding="utf-8")
    rows = {line.split("|")[1].strip() for line in page.splitlines() if line.startswith("| ")}
    assert set(differences(make_spec({**ARCHIVE, "serving": {"max_batch": 8}}))) <= rows
