"""Encoders from folders that `transformers` saved: packaged, loaded as in a worker, and sent requests."""

import base64
import json
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fakes import ask, start
from safetensors.torch import load_file
from specs import ROOT

from marina.archiver.encoders import EncoderGraph, load_encoder, read_texts
from marina.archiver.package import package
from marina.archiver.sources import load_source
from marina.config.errors import SourceError, SpecError
from marina.config.load import parse_spec
from marina.config.progress import Progress
from marina.config.spec import Spec
from marina.handlers.encoder import EncoderHandler, TextReader
from marina.handlers.protocols import HEADER
from marina.handlers.record import EncodingSpec
from marina.handlers.validation import RequestError

pytestmark = pytest.mark.slow
JSON = {"content-type": "application/json"}
SPEC = """
name: tiny
model:
  source: hf:./model
  handler: text
  task: {task}
  compile: export
  batch_sizes: [1, 4]
  encoding: {encoding}
"""
KINDS = {
    "answer": "QuestionAnswering",
    "classify": "SequenceClassification",
    "embed": "",
    "fill": "MaskedLM",
    "rerank": "SequenceClassification",
    "tokens": "TokenClassification",
}
LABELS = ["calm", "loud", "odd"]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Creates the folder of a model for a task, whose tokens are words."""
    from marina.handlers.torchvision_import import prepare_torchvision

    prepare_torchvision()
    import transformers
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors

    def make(task: str) -> Path:
        into = tmp_path_factory.mktemp(task) / "model"
        torch.manual_seed(0)
        words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "cat", "sat", "on", "a", "mat", "dog", "ran", "[MASK]"]
        labels: dict[str, Any] = {"id2label": dict(enumerate(LABELS))}
        labels = {"answer": {"num_labels": 2}, "rerank": {"num_labels": 1}}.get(task, labels)
        config = transformers.BertConfig(
            vocab_size=len(words),
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=32,
            max_position_embeddings=16,
            **labels,
        )
        getattr(transformers, f"Bert{'For' if KINDS[task] else 'Model'}{KINDS[task]}")(config).save_pretrained(into)
        tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, "[UNK]"))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
        if task == "fill":
            tokenizer.add_special_tokens([AddedToken("[MASK]", lstrip=True)])
            said = {"mask_token": "[MASK]", "pad_token": "[PAD]", "tokenizer_class": "PreTrainedTokenizerFast"}
            (into / "tokenizer_config.json").write_text(json.dumps(said))
        tokenizer.save(str(into / "tokenizer.json"))
        return into

    return make


@pytest.fixture(scope="module")
def served(folder: Callable[[str], Path]) -> Callable[..., Any]:
    """A started handler for a task, created once for each task and encoding."""
    made: dict[tuple[str, str], Any] = {}

    def serve(task: str, encoding: str = "{max_tokens: 8}") -> Any:
        if (task, encoding) not in made:
            where = folder(task).parent
            spec = parse_spec(SPEC.format(task=task, encoding=encoding), where / "spec.yaml")
            packaged = package(spec, where, progress=Progress(quiet=True))
            with zipfile.ZipFile(where / packaged.mar) as archive:
                archive.extractall(where / "unpacked")
            made[task, encoding] = start(EncoderHandler(), where / "unpacked")
        return made[task, encoding]

    return serve


def asked(handler: Any, body: object, **headers: str) -> Any:
    (reply,) = ask(handler, json.dumps(body).encode(), headers=JSON | headers)
    return reply


def by_transformers(folder: Path, kind: str, texts: list[str]) -> Any:
    """The outputs of `transformers` itself, for each text alone and without padding."""
    import transformers
    from tokenizers import Tokenizer

    network = getattr(transformers, kind).from_pretrained(folder).eval()
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    with torch.no_grad():
        return [network(input_ids=torch.tensor([tokenizer.encode(text).ids])) for text in texts]


@pytest.mark.parametrize("encoding", ["{max_tokens: 8}", "{max_tokens: 8, buckets: dynamic}"])
def test_texts_of_all_lengths_get_the_labels_that_transformers_gives(encoding: str, served: Callable[..., Any]) -> None:
    handler = served("classify", encoding)
    texts = ["the cat sat", "a dog ran on the mat", "mat", "the cat", "the cat sat on a mat"]
    expected = by_transformers(handler.directory.parent / "model", "BertForSequenceClassification", texts)
    for reply, output in zip(asked(handler, {"text": texts}).json(), expected, strict=True):
        probabilities = torch.softmax(output.logits[0], -1)
        best = int(probabilities.argmax())
        assert reply["top_labels"][0] == LABELS[best]
        assert reply["top_probs"][0] == pytest.approx(float(probabilities[best]), abs=1e-5)


@pytest.mark.parametrize("body", [{"text": "the cat sat"}, "the cat sat"])
def test_a_text_gets_one_answer_and_a_list_gets_a_list(served: Callable[..., Any], body: object) -> None:
    handler = served("classify")
    answer = asked(handler, body).json()
    assert set(answer) == {"top_indices", "top_probs", "top_labels"}
    assert asked(handler, ["the cat sat"]).json() == [answer]
    assert asked(handler, {"instances": ["the cat sat", {"text": "the cat sat"}]}).json() == {
        "predictions": [answer, answer]
    }
    (plain,) = ask(handler, b"the cat sat", headers={"content-type": "text/plain; charset=utf-8"})
    assert plain.json() == answer


def test_embeddings_are_the_mean_of_the_tokens_at_length_one(served: Callable[..., Any]) -> None:
    handler = served("embed")
    texts = ["the cat sat", "a dog"]
    expected = by_transformers(handler.directory.parent / "model", "BertModel", texts)
    for reply, output in zip(asked(handler, texts).json(), expected, strict=True):
        mean = output.last_hidden_state[0].mean(0)
        np.testing.assert_allclose(reply["embedding"], (mean / mean.norm()).numpy(), atol=1e-5)


def test_openais_clients_get_embeddings_as_they_ask_for_them(served: Callable[..., Any]) -> None:
    handler = served("embed")
    texts = ["the cat sat", "a dog"]
    plain = [answer["embedding"] for answer in asked(handler, texts).json()]
    floats = asked(handler, {"model": "tiny", "input": texts}).json()
    assert [entry["embedding"] for entry in floats["data"]] == plain
    assert floats["usage"] == {"prompt_tokens": 9, "total_tokens": 9}
    packed = asked(handler, {"model": "tiny", "input": texts[0], "encoding_format": "base64"}).json()["data"][0]
    np.testing.assert_allclose(np.frombuffer(base64.b64decode(packed["embedding"]), "<f4"), plain[0], atol=1e-6)
    refused = asked(handler, {"input": texts, "dimensions": 400})
    assert (refused.status, refused.json()["error"]["param"]) == (422, "dimensions")


def test_documents_are_ranked_by_their_score(served: Callable[..., Any]) -> None:
    handler = served("rerank")
    documents = ["a mat", "the dog ran", "the cat"]
    results = asked(handler, {"query": "cat", "documents": documents}).json()["results"]
    scores = [result["relevance_score"] for result in results]
    assert sorted(result["index"] for result in results) == [0, 1, 2]
    assert scores == sorted(scores, reverse=True)
    alone = asked(handler, {"query": "cat", "documents": [documents[results[0]["index"]]]}).json()["results"]
    assert alone[0]["relevance_score"] == pytest.approx(scores[0], abs=1e-5)


def test_pairs_have_token_types_only_if_the_tokenizer_makes_them(folder: Callable[[str], Path]) -> None:
    made = folder("rerank")
    spec = parse_spec(SPEC.format(task="rerank", encoding="{max_tokens: 8}"), made.parent / "spec.yaml")
    from transformers import AutoTokenizer

    kinds = ({"tokenizer_class": kind} for kind in ("BertTokenizer", "TokenizersBackend"))
    for said in (*kinds, {"model_input_names": ["input_ids"]}):
        (made / "tokenizer_config.json").write_text(json.dumps(said | {"do_lower_case": False}))
        names = {port.name for port in load_encoder(spec)[1]}
        assert names >= set(wanted := AutoTokenizer.from_pretrained(made)("the cat", "a dog"))
        assert ("token_type_ids" in wanted) == ("token_type_ids" in names)


def test_tokens_are_labelled_with_their_position_in_the_text(served: Callable[..., Any]) -> None:
    handler = served("tokens")
    tokens = asked(handler, {"text": "the  cat sat"}).json()["tokens"]
    assert [(token["start"], token["end"]) for token in tokens] == [(0, 3), (5, 8), (9, 12)]
    assert {token["label"] for token in tokens} <= set(LABELS)


def test_a_question_is_answered_by_the_likeliest_words_of_its_context(served: Callable[..., Any]) -> None:
    from transformers import AutoModelForQuestionAnswering

    handler = served("answer", "{max_tokens: 16}")
    folder = handler.directory.parent / "model"
    network = AutoModelForQuestionAnswering.from_pretrained(folder).eval()
    question, answers = ["cat", "sat"], set[str]()
    for context in ("the dog ran on a mat", "a mat", "mat the  cat sat on the dog"):
        ids = [handler.reader._tokenizer.token_to_id(word) for word in context.split()]
        asks = [handler.reader._tokenizer.token_to_id(word) for word in question]
        tokens, types = [2, *asks, 3, *ids, 3], [0] * (len(asks) + 2) + [1] * (len(ids) + 1)
        with torch.no_grad():
            found = network(input_ids=torch.tensor([tokens]), token_type_ids=torch.tensor([types]))
        begin = len(asks) + 2
        starts = found.start_logits[0, begin:-1].softmax(0)
        ends = found.end_logits[0, begin:-1].softmax(0)
        best = max((float(starts[i] * ends[j]), i, j) for j in range(len(ids)) for i in range(j + 1))
        body = {"question": " ".join(question), "context": context}
        answer = asked(handler, body).json()
        assert answer["answer"].split() == context.split()[best[1] : best[2] + 1]
        assert answer["score"] == pytest.approx(best[0], abs=1e-5)
        assert context[answer["start"] : answer["end"]] == answer["answer"]
        assert asked(handler, {"instances": [body]}).json() == {"predictions": [answer]}
        answers.add(answer["answer"])
    assert len(answers) > 1
    for body, told in (
        ({"question": "cat"}, "a question and a context"),
        ({"question": "cat", "context": ""}, "no tok"),
    ):
        refused = asked(handler, body)
        assert (refused.status, told in refused.body.decode()) == (422, True)


def test_masks_are_filled_as_transformers_fills_them(served: Callable[..., Any]) -> None:
    from transformers import AutoModelForMaskedLM, AutoTokenizer, pipeline

    handler = served("fill")
    folder = handler.directory.parent / "model"
    network, tokenizer = AutoModelForMaskedLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    fill = pipeline("fill-mask", model=network, tokenizer=tokenizer, top_k=5)
    texts = ["the [MASK] sat", "a [MASK] ran on the  [MASK]", "[MASK]"]
    for text, answer in zip(texts, asked(handler, {"text": texts}).json(), strict=True):
        wanted = fill(text)
        wanted = wanted if isinstance(wanted[0], list) else [wanted]
        assert [text[mask["start"] : mask["end"]] for mask in answer["masks"]] == ["[MASK]"] * len(wanted)
        for mask, best in zip(answer["masks"], wanted, strict=True):
            assert mask["top_tokens"] == [each["token_str"] for each in best]
            assert mask["top_probs"] == pytest.approx([each["score"] for each in best], abs=1e-5)
    refused = asked(handler, {"text": "the cat sat"})
    assert (refused.status, "[MASK] once or more" in refused.body.decode()) == (422, True)


def test_texts_are_tensors_of_bytes(served: Callable[..., Any]) -> None:
    handler = served("classify")
    tensor = {"name": "text", "shape": [2], "datatype": "BYTES", "data": ["the cat sat", "a dog"]}
    outputs = {
        output["name"]: output for output in asked(handler, {"inputs": [tensor]}, **{HEADER: "v2"}).json()["outputs"]
    }
    assert outputs["top_labels"]["data"][0] == asked(handler, "the cat sat").json()["top_labels"][0]


LONG = "the cat sat on a mat a dog ran"


def test_a_text_that_is_too_long_is_refused_or_cut_at_one_end(served: Callable[..., Any]) -> None:
    refused = asked(served("classify"), LONG)
    assert (refused.status, refused.json()) == (
        422,
        {"error": "the text is too long", "field": "text", "got": "11 tokens", "allowed": "at most 8"},
    )
    for side, left in (("right", "the cat sat on a mat"), ("left", "on a mat a dog ran")):
        handler = served("classify", f"{{max_tokens: 8, truncate: {side}}}")
        assert asked(handler, LONG).json() == asked(handler, left).json()


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"text": 5}, 422),
        ({"text": []}, 422),
        ([1, 2], 422),
        ({"txt": "a"}, 422),
        (["a"] * 65, 413),
        ("a" * 200_001, 413),
    ],
    ids=lambda value: str(value)[:20],
)
def test_only_the_request_without_a_text_is_refused(served: Callable[..., Any], body: object, status: int) -> None:
    good, bad = json.dumps("the cat").encode(), json.dumps(body).encode()
    first, refused, last = ask(served("classify"), good, bad, good, headers=JSON)
    assert (first.status, refused.status, last.status) == (200, status, 200)
    assert first.json() == last.json()


@pytest.mark.parametrize(("encoding", "computed"), [("{max_tokens: 8}", 8), ("{max_tokens: 8, buckets: dynamic}", 6)])
def test_a_text_is_padded_no_further_than_its_bucket(encoding: str, computed: int, served: Callable[..., Any]) -> None:
    handler = served("classify", encoding)
    ((row, _),) = handler.reader.read(["the cat sat on"])
    assert [len(array) for array in row] == [6, 6, 6]
    assert [chunk.length for chunk in handler._batcher._chunks({0: row})] == [computed]


def test_a_text_without_tokens_is_refused(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models

    Tokenizer(models.WordLevel({"the": 0}, "the")).save(str(tmp_path / "tokenizer.json"))
    reader = TextReader(
        str(tmp_path / "tokenizer.json"), EncodingSpec("embed", 8, "error", "tokenizer.json"), ["input_ids"]
    )
    with pytest.raises(RequestError, match="the text has no tokens"):
        reader.read([""])


def test_a_folder_with_code_is_refused(folder: Callable[[str], Path]) -> None:
    model = folder("classify")
    text, file = SPEC.format(task="classify", encoding="{max_tokens: 8}"), model.parent / "spec.yaml"
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"auto_map": {"AutoModel": "modeling.Evil"}}))
    with pytest.raises(SpecError, match="the model comes with its own code, which is not run"):
        parse_spec(text, file)


class Acts:
    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("it ran",)


@pytest.mark.parametrize("parts", [1, 2])
def test_older_weights_are_read_and_nothing_that_is_pickled_beside_them_is_run(
    folder: Callable[[str], Path], parts: int
) -> None:
    model = folder("classify")
    spec = parse_spec(SPEC.format(task="classify", encoding="{max_tokens: 8}"), model.parent / "spec.yaml")
    saved = load_file(model / "model.safetensors")
    (model / "model.safetensors").unlink()
    files = ["pytorch_model.bin"] if parts == 1 else [f"pytorch_model-0000{part}-of-00002.bin" for part in (1, 2)]
    places = {name: files[place % parts] for place, name in enumerate(saved)}
    for file in files:
        torch.save({name: value for name, value in saved.items() if places[name] == file}, model / file)
    if parts == 2:
        index = {"metadata": {"total_size": 1}, "weight_map": places}
        (model / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    read = load_source(spec)
    assert all(torch.equal(value, saved[name]) for name, value in read.network.state_dict().items() if name in saved)
    assert read.notes[0].startswith(
        f"the weights are in `{'pytorch_model.bin' if parts == 1 else 'pytorch_model.bin.i'}"
    )
    torch.save(saved | {"more": Acts()}, model / files[0])
    with pytest.raises(SourceError, match="cannot be loaded"):
        load_source(spec)


def test_a_task_that_the_weights_do_not_fit_is_refused(folder: Callable[[str], Path], tmp_path: Path) -> None:
    spec = change_config(folder("embed"), "tokens", architectures=None)
    with pytest.raises(SourceError, match=r"has no weights for `classifier\.bias`, which `task: tokens` needs"):
        package(spec, tmp_path, progress=Progress(quiet=True))
    assert not list(tmp_path.iterdir())


def change_config(folder: Path, task: str = "classify", **changes: object) -> Spec:
    """Changes `config.json` of a model; returns its spec."""
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    return parse_spec(SPEC.format(task=task, encoding="{max_tokens: 8}"), folder.parent / "spec.yaml")


def test_labels_that_do_not_exclude_each_other_have_their_own_probabilities(folder: Callable[[str], Path]) -> None:
    spec = change_config(folder("classify"), problem_type="multi_label_classification")
    network, _, _ = load_encoder(spec)
    inputs = torch.tensor([[2, 5, 6, 3]]), torch.ones(1, 4, dtype=torch.int64), torch.zeros(1, 4, dtype=torch.int64)
    with torch.no_grad():
        (expected,) = torch.sigmoid(network(*inputs).logits)
        probabilities, _ = EncoderGraph(network, spec)(*inputs)
    assert probabilities[0].tolist() == pytest.approx(sorted(expected.tolist(), reverse=True), abs=1e-6)


@pytest.mark.parametrize(
    ("task", "changes", "message"),
    [
        ("rerank", {}, "numbers that are not probabilities"),
        ("classify", {"problem_type": "regression"}, "numbers that are not probabilities"),
        ("classify", {"id2label": {"1": "calm", "2": "loud", "3": "odd"}}, "`id2label` has no `0`"),
        ("classify", {"id2label": {"0": "calm", "1": "odd"}}, "`classifier.bias` in the weights .* has another size"),
    ],
)
def test_a_classifier_without_classes_is_refused(
    task: str, changes: dict[str, Any], message: str, folder: Callable[[str], Path]
) -> None:
    spec = change_config(folder(task), **changes)
    with pytest.raises(SourceError, match=message):
        load_encoder(spec)


@pytest.mark.parametrize(
    ("family", "kind"), [("T5", "EncoderModel"), ("T5", "ForConditionalGeneration"), ("Bart", "Model")]
)
def test_the_encoder_of_a_model_with_a_decoder_makes_embeddings(
    family: str, kind: str, folder: Callable[[str], Path]
) -> None:
    import transformers

    model = folder("embed")
    config = {"vocab_size": 64, "d_model": 16, "num_layers": 1, "encoder_layers": 1, "decoder_layers": 1, "d_ff": 16}
    torch.manual_seed(0)
    saved = getattr(transformers, f"{family}{kind}")(getattr(transformers, f"{family}Config")(**config)).eval()
    saved.save_pretrained(model)
    spec = parse_spec(SPEC.format(task="embed", encoding="{max_tokens: 8}"), model.parent / "spec.yaml")
    network, ports, _ = load_encoder(spec)
    ids, mask = torch.arange(8)[None], torch.ones(1, 8, dtype=torch.int64)
    states = saved.get_encoder()(ids, attention_mask=mask).last_hidden_state
    expected = torch.nn.functional.normalize(states.mean(1), dim=-1)
    assert torch.allclose(EncoderGraph(network, spec)(ids, mask)[0], expected, atol=1e-6)
    assert [port.name for port in ports] == ["input_ids", "attention_mask"]


def test_calibration_texts_that_are_not_utf8_are_refused(folder: Callable[[str], Path], tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_bytes(b"caf\xe9\n")
    model = folder("classify")
    spec = parse_spec(SPEC.format(task="classify", encoding="{max_tokens: 8}"), model.parent / "spec.yaml")
    with pytest.raises(SourceError, match=r"`model.calibration`: `.*/texts.txt`: 'utf-8' codec can't decode byte 0xe9"):
        read_texts(spec, tmp_path / "texts.txt", ())


def test_a_pod_needs_no_transformers() -> None:
    code = "import sys; sys.modules['transformers'] = None; import marina.handlers.encoder"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_transformers_can_be_imported_beside_a_torchvision_that_does_not_fit_torch() -> None:
    code = "import marina.handlers.torchvision_import as finder; finder.install(); from transformers import BertModel"
    subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path[:0] = {sys.path!r}; {code}"], cwd=ROOT, check=True
    )
