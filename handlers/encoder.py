"""`handler: text` with a `task`: texts in; labels, embeddings, scores, labelled tokens, tokens for masks or answers to
questions out.

Takes `{"text": "..."}`, `{"text": [...]}`, a JSON string or a list of them, and plain text. `rerank` takes
`{"query": "...", "documents": [...]}` and `answer` `{"question": "...", "context": "..."}` instead, and `embed` also
the requests of OpenAI's clients to `/v1/embeddings`. Several texts get a list of answers. The handler tokenises the
texts with `tokenizers`; each becomes a row of its own length."""

import base64
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from marina.handlers.arrays import Array, to_json
from marina.handlers.base import Handler
from marina.handlers.protocols import Exchange, NamedTensor, Row, check_row_count
from marina.handlers.record import EncodingSpec, RecordError
from marina.handlers.request import FORM, Answer, Request
from marina.handlers.validation import Malformed, NonFiniteOutput, RequestError, TooLarge, Unprocessable, describe_json

# Longer texts would hold up the rest of their batch, because they are tokenised before they are truncated. All texts of
# a request take about a second then; a query counts once with each of its documents.
MAX_CHARACTERS, MAX_ALL_CHARACTERS = 200_000, 1_000_000
_TEXT = '{"%s": "..."}, or a list of texts'
# As many as `transformers` allows unless told otherwise.
_MOST_ANSWER_TOKENS = 15
_QUESTION = '{"question": "...", "context": "..."}'
_PAIRS = '{"query": "...", "documents": ["...", ...]}'
# The fields of each kind of body; a further one would be ignored silently.
_ANSWER_FIELDS = ("question", "context", "model", "user")
_RERANK_FIELDS = ("query", "documents", "top_n", "model", "user")
_OPENAI_FIELDS = ("input", "model", "encoding_format", "dimensions", "prompt_name", "user")
_TEXT_FIELDS = ("text", "model", "prompt_name", "user")

Text = str | tuple[str, str]
# Where the characters of each token begin and end in its text; None for a token that the answer says nothing about.
Places = list[tuple[int, int] | None]


class TextReader:
    """Turns texts into rows of token ids, with their mask and, if the model has that input, the type of each token.
    `highest` is the largest id that the model knows: some tokenizers have more tokens than the weights of their models.
    """

    def __init__(self, file: str, spec: EncodingSpec, inputs: Sequence[str], highest: float | None = None) -> None:
        # A worker already has threads for its share of the cores; more would only compete with them.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        from tokenizers import Tokenizer

        self._spec, self._inputs, self._highest = spec, tuple(inputs), highest
        self._tokenizer: Any = Tokenizer.from_file(file)
        self._tokenizer.no_padding()
        self._mask = self._tokenizer.token_to_id(spec.mask) if spec.mask else None
        if spec.truncate == "error":
            self._tokenizer.no_truncation()
        else:
            self._tokenizer.enable_truncation(spec.max_tokens, direction=spec.truncate)

    def read(self, texts: Sequence[Text]) -> list[tuple[Row, Places]]:
        """The row of each text, and the places of its tokens if the task needs them."""
        lengths = [len(text) if isinstance(text, str) else sum(map(len, text)) for text in texts]
        for what, length, most in (
            ("the text is", max(lengths), MAX_CHARACTERS),
            ("all texts together are", sum(lengths), MAX_ALL_CHARACTERS),
        ):
            if length > most:
                got, allowed = f"{length} characters", f"at most {most}"
                raise TooLarge(f"{what} too long", field="text", got=got, allowed=allowed)
        return [self._read(text) for text in texts]

    def _read(self, text: Text) -> tuple[Row, Places]:
        # One by one, because an encoding also holds the tokens that are cut off, in a hundred bytes each.
        encoding = self._tokenizer.encode(*((text,) if isinstance(text, str) else text))
        return self._row(encoding), self._places(encoding)

    def _places(self, encoding: Any) -> Places:
        if self._spec.task == "tokens":
            places = zip(encoding.offsets, encoding.special_tokens_mask, strict=True)
            return [None if is_special else place for place, is_special in places]
        if self._spec.task == "answer":
            return _places_in_context(encoding)
        if self._mask is None:
            return []
        if self._mask not in encoding.ids:
            raise Unprocessable(
                "the text has no mask", field="text", got="none", allowed=f"{self._spec.mask} once or more"
            )
        # Some tokenizers count the space before a mask as a part of it.
        length = len(self._spec.mask or "")
        ends = ((end, token) for (_, end), token in zip(encoding.offsets, encoding.ids, strict=True))
        return [(end - length, end) if token == self._mask else None for end, token in ends]

    def token(self, number: int) -> str:
        """The text of a token."""
        return str(self._tokenizer.decode([number], skip_special_tokens=False))

    def _row(self, encoding: Any) -> Row:
        longest, count = self._spec.max_tokens, len(encoding.ids)
        if count > longest:
            got, allowed = f"{count} tokens", f"at most {longest}"
            raise Unprocessable("the text is too long", field="text", got=got, allowed=allowed)
        if not count:
            raise Unprocessable("the text has no tokens", field="text", got="0 tokens", allowed="at least 1")
        if self._highest is not None and (most := max(encoding.ids)) > self._highest:
            got, allowed = f"token {most}", f"up to {self._highest:.0f}"
            raise Unprocessable(
                "the text has a token that the model does not know", field="text", got=got, allowed=allowed
            )
        values = {
            "input_ids": encoding.ids,
            "attention_mask": encoding.attention_mask,
            "token_type_ids": encoding.type_ids,
        }
        return [np.array(values[name], np.int64) for name in self._inputs]


class EncoderHandler(Handler):
    """Answers one task over texts."""

    spec: EncodingSpec
    labels: list[str] | None = None

    def setup(self) -> None:
        if self.record.encoding is None:
            raise RecordError("`encoding`: missing, but the handler is `text`")
        self.spec = self.record.encoding
        names = [spec.name for spec in self.record.inputs]
        tokenizer, highest = str(self.directory / self.spec.tokenizer), self.record.inputs[0].max
        self.reader = TextReader(tokenizer, self.spec, names, highest)
        self.labels = self._read_labels()

    @property
    def tensor_names(self) -> set[str]:
        named = {"answer": {"question", "context"}, "rerank": {"query", "documents"}}
        return named.get(self.spec.task, {"text"})

    def exchange(self, request: Request) -> Exchange:
        """The rows of all texts in a body, and how to make its answer."""
        value = _value(request)
        if isinstance(value, Mapping) and "input" in value and self.spec.task == "embed":
            try:
                return self._openai(value)
            except RequestError as err:
                if err.details["field"] == "text":
                    err.details["field"] = "input"
                raise err.for_openai() from err
        if self.spec.task == "rerank":
            query, documents = _pairs(value)
            given = _given(value, _RERANK_FIELDS)
            rank = partial(_rank, count=_top_n(given, len(documents)))
            return self._exchange([(query, document) for document in documents], rank)
        texts, single = self._texts(value)
        return self._exchange(texts, lambda results: results[0] if single else results)

    def decode(self, request: Request) -> Row:
        """The row of a single text: one instance of a request with several."""
        value = _value(request)
        texts, single = self._texts(value) if self.spec.task != "rerank" else (_single_pair(value), True)
        if not single:
            raise Unprocessable("one text is needed", field="text", got=f"{len(texts)} texts")
        ((row, places),) = self.reader.read(texts)
        request.kept = places, texts[0]
        return row

    def encode(self, outputs: Row, request: Request) -> Answer:
        return Answer(to_json(self._result(outputs, *request.kept)))

    def decode_tensors(self, tensors: Mapping[str, NamedTensor], until: float) -> tuple[list[Row], bool]:
        columns = {name: _strings(tensor) for name, tensor in tensors.items()}
        texts: list[Text]
        if self.spec.task == "rerank":
            if len(columns["query"]) != 1:
                raise Unprocessable("one query is needed", field="query", got=f"{len(columns['query'])} elements")
            texts = [(columns["query"][0], document) for document in columns["documents"]]
        elif self.spec.task == "answer":
            questions, contexts = columns["question"], columns["context"]
            if len(questions) != len(contexts):
                got, allowed = f"{len(questions)} elements", f"{len(contexts)}, as `context` has"
                raise Unprocessable("each context needs a question", field="question", got=got, allowed=allowed)
            texts = list(zip(questions, contexts, strict=True))
        else:
            texts = self._prompted(columns["text"], None)
        return [row for row, _ in self.reader.read(texts)], True

    def name_outputs(self, outputs: Row) -> Mapping[str, Array | list[str]]:
        named = dict(super().name_outputs(outputs))
        if self.spec.task == "classify" and self.labels is not None:
            named["top_labels"] = [self.labels[index] for index in outputs[1].tolist()]
        return named

    def _exchange(self, texts: Sequence[Text], combine: Callable[[list[Any]], Any]) -> Exchange:
        check_row_count(len(texts), self.max_rows, "text")
        read = self.reader.read(texts)

        def answer(outputs: list[Row]) -> Answer:
            results = [
                self._result(row, places, text) for row, (_, places), text in zip(outputs, read, texts, strict=True)
            ]
            value = combine(results)
            return Answer(to_json(value) if isinstance(value, dict) else b"[" + b",".join(map(to_json, value)) + b"]")

        return Exchange([row for row, _ in read], answer)

    def _texts(self, value: object) -> tuple[list[Text], bool]:
        """The texts in a JSON value, each with its prompt, and whether it was a single one instead of a list."""
        if self.spec.task == "answer":
            return [_question(value)], True
        texts, single = _texts(value)
        return self._prompted(texts, value), single

    def _result(self, outputs: Row, places: Places, text: Text = "") -> dict[str, Any]:
        """The result for one text."""
        if any(output.dtype.kind == "f" and not np.isfinite(output).all() for output in outputs):
            raise NonFiniteOutput
        if self.spec.task == "tokens":
            return {"tokens": self._labelled_tokens(outputs[0], places)}
        if self.spec.task == "answer":
            return _best_answer(outputs[0], outputs[1], places, text[1])
        if self.spec.task == "fill":
            return {"masks": self._filled_masks(outputs[0], outputs[1], places)}
        return dict(self.name_outputs(outputs))

    def _labelled_tokens(self, probabilities: Array, places: Places) -> list[dict[str, Any]]:
        tokens = []
        for scores, place in zip(probabilities, places, strict=True):
            if place is not None:
                best = int(scores.argmax())
                label = self.labels[best] if self.labels else best
                tokens.append({"start": place[0], "end": place[1], "label": label, "score": float(scores[best])})
        return tokens

    def _filled_masks(self, probabilities: Array, tokens: Array, places: Places) -> list[dict[str, Any]]:
        return [
            {
                "start": place[0],
                "end": place[1],
                "top_tokens": list(map(self.reader.token, tokens[at].tolist())),
                "top_probs": probabilities[at],
            }
            for at, place in enumerate(places)
            if place is not None
        ]

    def _prompted(self, texts: Sequence[Any], body: object) -> list[Any]:
        """The texts with the prompt before them that the body names, or that texts have by default."""
        name = body.get("prompt_name") if isinstance(body, Mapping) else None
        name = self.spec.default_prompt if name is None else name
        if name is None:
            return list(texts)
        if not isinstance(name, str) or name not in self.spec.prompts:
            got = name if isinstance(name, str) else describe_json(name)
            allowed = sorted(self.spec.prompts) or "none: this model has no prompts"
            raise Unprocessable("the prompt is unknown", field="prompt_name", got=got, allowed=allowed)
        return [self.spec.prompts[name] + text for text in texts]

    def _shortened(self, vector: Array, size: int) -> Array:
        """The first numbers of an embedding, with the length 1 again if it had it."""
        short: Array = vector[:size]
        length = float(np.linalg.norm(short)) if self.spec.is_normalised and size < len(vector) else 1.0
        return short / np.float32(length) if length > 0 else short

    def _openai(self, body: Mapping[str, Any]) -> Exchange:
        """A request to `/v1/embeddings`. OpenAI's clients ask for base64 unless told otherwise."""
        given = _given(body, _OPENAI_FIELDS)
        texts, _ = _texts(body["input"], field="input")
        texts = self._prompted(texts, body)
        form = given.get("encoding_format", "float")
        if form not in ("base64", "float"):
            raise Unprocessable("the format is unknown", field="encoding_format", got=form, allowed="base64, float")
        width = self.record.outputs[0].shape[0]
        size = given.get("dimensions", width)
        if type(size) is not int or not 1 <= size <= width:
            got = size if isinstance(size, int | float) else describe_json(size)
            raise Unprocessable("embeddings are not so long", field="dimensions", got=got, allowed=f"1 to {width}")
        check_row_count(len(texts), self.max_rows, "input")
        read = self.reader.read(texts)
        tokens = sum(len(row[0]) for row, _ in read)

        def answer(outputs: list[Row]) -> Answer:
            vectors = [self._shortened(self._result(row, [])["embedding"], size).astype("<f4") for row in outputs]
            encoded = [base64.b64encode(vector.tobytes()).decode() for vector in vectors]
            given = encoded if form == "base64" else vectors
            data = [{"object": "embedding", "index": index, "embedding": vector} for index, vector in enumerate(given)]
            usage = {"prompt_tokens": tokens, "total_tokens": tokens}
            return Answer(to_json({"object": "list", "data": data, "model": self.record.name, "usage": usage}))

        return Exchange([row for row, _ in read], answer)


def _value(request: Request) -> object:
    """The JSON value of a body, or its text if it is plain text."""
    kind = request.content_type
    if request.is_decoded or kind.endswith("json") or not kind.startswith(("text/", "multipart/form-data", FORM)):
        return request.json()
    try:
        return bytes(request.body).decode("utf-8")
    except UnicodeDecodeError as err:
        raise Malformed("the text is not valid UTF-8", field="body") from err


def _texts(value: object, field: str = "text") -> tuple[list[Text], bool]:
    """The texts in a JSON value, and whether it was a single text instead of a list."""
    given = _given(value, _TEXT_FIELDS).get("text", value) if isinstance(value, Mapping) else value
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        raise Unprocessable("a text is needed", field=field, got=describe_json(given), allowed=_TEXT % field)
    return list(texts), isinstance(given, str)


def _given(value: object, known: Sequence[str]) -> dict[str, Any]:
    """The fields of a body that are set; raises Unprocessable if one is not known. Clients send null for none."""
    given = {name: part for name, part in value.items() if part is not None} if isinstance(value, Mapping) else {}
    if extra := [name for name in given if name not in known]:
        raise Unprocessable("the field is not supported", field=extra[0], allowed=known)
    return given


def _top_n(given: Mapping[str, Any], documents: int) -> int:
    """How many documents the answer names."""
    count = given.get("top_n", documents)
    if type(count) is not int or count < 1:
        got = count if isinstance(count, int | float) else describe_json(count)
        raise Unprocessable("a number of documents is needed", field="top_n", got=got, allowed="a whole number above 0")
    return count


def _rank(results: list[Any], count: int) -> dict[str, Any]:
    scores = [float(result["score"]) for result in results]
    order = sorted(range(len(scores)), key=lambda index: -scores[index])
    return {"results": [{"index": index, "relevance_score": scores[index]} for index in order[:count]]}


def _question(value: object) -> tuple[str, str]:
    """The question and the context in a body."""
    given = _given(value, _ANSWER_FIELDS)
    question, context = given.get("question"), given.get("context")
    if not isinstance(question, str) or not isinstance(context, str):
        got = describe_json(value)
        raise Unprocessable("a question and a context are needed", field="question", got=got, allowed=_QUESTION)
    return question, context


def _places_in_context(encoding: Any) -> Places:
    """The place of the word of each token of the context, because an answer never ends within a word."""
    places: Places = [
        (encoding.word_to_chars(word, 1) if word is not None else place) if sequence == 1 else None
        for sequence, word, place in zip(encoding.sequence_ids, encoding.word_ids, encoding.offsets, strict=True)
    ]
    if not any(places):
        raise Unprocessable("the context has no tokens", field="context", got="0 tokens", allowed="at least 1")
    return places


def _best_answer(starts: Array, ends: Array, places: Places, context: str) -> dict[str, Any]:
    """The likeliest span of the context, with the probability that it starts and ends there."""
    inside = [at for at, place in enumerate(places) if place is not None]
    spans = np.outer(_softmax(starts[inside]), _softmax(ends[inside]))
    spans = np.tril(np.triu(spans), _MOST_ANSWER_TOKENS - 1)
    first, last = np.unravel_index(spans.argmax(), spans.shape)
    (start, _), (_, end) = places[inside[first]] or (0, 0), places[inside[last]] or (0, 0)
    answer = context[start:end]
    start += len(answer) - len(answer.lstrip())
    answer = answer.strip()
    return {"answer": answer, "score": float(spans[first, last]), "start": start, "end": start + len(answer)}


def _softmax(logits: Array) -> Array:
    exponents = np.exp(logits.astype(np.float64) - logits.max())
    shares: Array = exponents / exponents.sum()
    return shares


def _pairs(value: object) -> tuple[str, list[str]]:
    query, documents = (value.get("query"), value.get("documents")) if isinstance(value, Mapping) else (None, None)
    if (
        not isinstance(documents, list)
        or not documents
        or not all(isinstance(text, str) for text in (query, *documents))
    ):
        raise Unprocessable("a query and documents are needed", field="query", got=describe_json(value), allowed=_PAIRS)
    return str(query), documents


def _single_pair(value: object) -> list[Text]:
    given = dict(value) if isinstance(value, Mapping) else {}
    query, documents = _pairs(given | {"documents": [given.get("document")]})
    return [(query, documents[0])]


def _strings(tensor: NamedTensor) -> list[str]:
    if tensor.array is not None:
        raise Unprocessable("the type is wrong", field=tensor.name, got="numbers", allowed="BYTES")
    try:
        return [element.decode("utf-8") for element in tensor.elements]
    except UnicodeDecodeError as err:
        raise Malformed("the text is not valid UTF-8", field=tensor.name) from err
