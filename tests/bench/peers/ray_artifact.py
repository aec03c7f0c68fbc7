"""Ray Serve around the compiled artifact: a replica a core, with its batching."""

import os

import network
from ray import serve
from starlette.requests import Request

BATCH, WORKERS = int(os.environ["BATCH"]), int(os.environ["WORKERS"])


@serve.deployment(num_replicas=WORKERS, max_ongoing_requests=4 * BATCH, ray_actor_options={"num_cpus": 1})
class Compiled:
    def __init__(self):
        self.artifact = network.Artifact()

    @serve.batch(max_batch_size=BATCH, batch_wait_timeout_s=0.002)
    async def answers(self, bodies):
        return self.artifact.answers([self.artifact.pixels(body) for body in bodies])

    async def __call__(self, request: Request):
        return await self.answers(await request.body())


app = Compiled.bind()  # type: ignore[attr-defined]  # Ray adds it
