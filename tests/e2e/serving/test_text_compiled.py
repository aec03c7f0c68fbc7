"""The tales in 8 bits through a real TorchServe, from the compiled decoder: the same answer alone, among others, and
after a prompt that was read before; and answers that match a schema."""

import http.client
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jsonschema
import openai
import pytest
from hostile_texts import COMPLETIONS, endless_texts, refused_texts
from packages import TALES_VARIANTS, packaged_tales
from redis_server import PASSWORD, redis_server
from running import Running, running
from specs import tales_spec
from waiting import eventually, metric, worker_pids

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

PROMPT = "Once upon a time there was a boat in the harbour. The keeper of the lighthouse saw it, and he said: "


TALE = {
    "type": "object",
    "properties": {
        "boat": {"type": "string", "maxLength": 12},
        "weather": {"enum": ["calm", "storm"]},
        "year": {"type": "integer", "minimum": 1800, "maximum": 1900},
    },
    "required": ["boat", "weather", "year"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder, package = packaged_tales("int8")
    assert (package.record.precision, package.record.artifacts[0].file) == ("int8", "model/decoder.so")
    with redis_server(tmp_path_factory.mktemp("redis")) as redis:
        changes = TALES_VARIANTS["int8"] | {"text.sessions": {"redis": redis.url}, "serving.drain_propagation_s": 0}
        environment = {"MARINA_SESSIONS_AUTH": PASSWORD}
        with running(tales_spec(changes), mar=folder / package.mar, environment=environment) as server:
            yield server


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_a_compiled_model_answers_the_same_alone_and_among_others(server: Running, client: openai.OpenAI) -> None:
    def answer(prompt: str) -> str:
        given = client.completions.create(model="tales", prompt=prompt, max_tokens=40, temperature=0)
        return given.choices[0].text

    alone = answer(PROMPT)
    with ThreadPoolExecutor(12) as pool:
        among = list(pool.map(answer, [PROMPT, "The sea", "A ship"] * 4))
    assert len(alone) > 40
    assert set(among[::3]) == {alone}
    assert len(set(among)) == 3
    eventually(lambda: metric(server, "inference_reused_tokens_total", model="tales") > 3 * 16)


def test_answers_match_their_schema_or_it_is_refused(client: openai.OpenAI) -> None:
    def answer(schema: dict[str, object], seed: int) -> str:
        wanted = {"type": "json_schema", "json_schema": {"name": "tale", "schema": schema, "strict": True}}
        said = [{"role": "user", "content": "Once upon a time"}]
        given = client.chat.completions.create(
            model="tales", messages=said, max_tokens=256, seed=seed, response_format=wanted
        )
        assert given.choices[0].finish_reason == "stop"
        return given.choices[0].message.content

    with ThreadPoolExecutor(5) as pool:
        hostile = pool.submit(answer, {"type": "integer", "multipleOf": 999983}, 0)
        for text in pool.map(lambda seed: answer(TALE, seed), range(4)):
            jsonschema.validate(json.loads(text), TALE)
        with pytest.raises(openai.BadRequestError, match="to compile it") as refused:
            hostile.result()
        assert refused.value.param == "response_format"


def test_what_nobody_can_mean_is_refused_and_changes_no_answer(server: Running) -> None:
    def post(path: str, body: bytes) -> tuple[int, dict[str, Any]]:
        connection = http.client.HTTPConnection("127.0.0.1", server.ports.inference, timeout=60)
        connection.request("POST", f"/predictions/tales/1.0{path}", body, {"Content-Type": "application/json"})
        with connection.getresponse() as answer:
            return answer.status, json.loads(answer.read())

    def written() -> object:
        asked = {"prompt": PROMPT, "max_tokens": 40, "temperature": 0, "logprobs": 1}
        status, answer = post(COMPLETIONS, json.dumps(asked).encode())
        return status, answer["choices"]

    workers, before = worker_pids(server), written()
    with ThreadPoolExecutor(4) as others, ThreadPoolExecutor(4) as attackers:
        beside = [others.submit(written) for _ in range(12)]
        refused = {name: attackers.submit(post, *request) for name, request in refused_texts().items()}
        endless = [attackers.submit(post, *request) for request in endless_texts()]
        for name, answer in refused.items():
            status, body = answer.result()
            assert status in (400, 404, 413), (name, body)
            assert body["error"].keys() == {"message", "type", "param", "code"}, name
            assert body["error"]["type"] == "invalid_request_error", name
        for answer in endless:
            status, body = answer.result()
            assert status == 400 or body["choices"][0]["finish_reason"] == "length"
        assert [answer.result() for answer in beside] == [before] * 12
    assert written() == before
    assert worker_pids(server) == workers
    eventually(lambda: metric(server, "inference_sequences", model="tales") == 0)


@pytest.mark.parametrize("stream", [False, True])
def test_a_conversation_goes_on_by_its_name(server: Running, client: openai.OpenAI, stream: bool) -> None:
    def turn(text: str) -> tuple[int, int]:
        """How many messages were known before, and the tokens of the whole prompt."""
        answer = client.chat.completions.with_raw_response.create(
            model="tales",
            messages=[{"role": "user", "content": text}],
            max_tokens=4,
            extra_headers={"X-Conversation": f"stream-{stream}"},
            **({"stream": True, "stream_options": {"include_usage": True}} if stream else {}),
        )
        parsed = answer.parse()
        usage = list(parsed)[-1].usage if stream else parsed.usage
        return int(answer.headers["x-conversation-messages"]), usage.prompt_tokens

    before, first = turn("Once upon a time")
    assert before == 0
    # The answer is a message of it, too.
    again, second = turn("Once more")
    assert again == 2
    assert second > first
    eventually(lambda: metric(server, "inference_conversations_total", result="continued") >= 1)
