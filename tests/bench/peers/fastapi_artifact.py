"""FastAPI around the compiled artifact: a worker a core, the body as it is, one photo at a time: it has no batching."""

import network
from fastapi import FastAPI, Request

app = FastAPI()
artifact = network.Artifact()


@app.post("/predict")
async def predict(request: Request):
    return artifact.answers([artifact.pixels(await request.body())])[0]
