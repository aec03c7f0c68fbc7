"""The tales in 8 bits through a real TorchServe, from the compiled decoder: the same answer alone, among others, and
after a prompt that was read before."""

from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
from packages import TALES_VARIANTS, packaged_tales
from running import running
from specs import tales_spec
from waiting import metric

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

PROMPT = "Once upon a time there was a boat in the harbour. The keeper of the lighthouse saw it, and he said: "


def test_a_compiled_model_answers_the_same_alone_and_among_others() -> None:
    folder, package = packaged_tales("int8")
    assert (package.record.precision, package.record.artifacts[0].file) == ("int8", "model/decoder.so")
    spec = tales_spec(TALES_VARIANTS["int8"] | {"serving.drain_propagation_s": 0})
    with running(spec, mar=folder / package.mar) as server:
        with openai.OpenAI(base_url=f"{server.url}/predictions/tales/1.0/v1", api_key="none") as client:

            def answer(prompt: str) -> str:
                given = client.completions.create(model="tales", prompt=prompt, max_tokens=40, temperature=0)
                return given.choices[0].text

            alone = answer(PROMPT)
            with ThreadPoolExecutor(12) as pool:
                among = list(pool.map(answer, [PROMPT, "The sea", "A ship"] * 4))
        assert len(alone) > 40
        assert set(among[::3]) == {alone}
        assert len(set(among)) == 3
        assert metric(server, "inference_reused_tokens_total", model="tales") > 3 * 16
