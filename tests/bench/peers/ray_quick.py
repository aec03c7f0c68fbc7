"""Ray Serve as its image tutorial has it: one replica, the body of the request as it is."""

import network
import torch
from ray import serve
from starlette.requests import Request


@serve.deployment
class Quick:
    def __init__(self):
        self.model, self.transform = network.quick_start()

    async def __call__(self, request: Request):
        body = await request.body()
        with torch.no_grad():
            return network.top_five(self.model(network.to_tensor(body, self.transform).unsqueeze(0)))[0]


app = Quick.bind()  # type: ignore[attr-defined]  # Ray adds it
