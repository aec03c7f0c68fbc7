"""FastAPI as its tutorial takes files: a plain function, which FastAPI runs in its thread pool."""

import network
import torch
from fastapi import FastAPI, UploadFile

app = FastAPI()
model, transform = network.quick_start()


@app.post("/predict")
def predict(file: UploadFile):
    with torch.no_grad():
        logits = model(network.to_tensor(file.file.read(), transform).unsqueeze(0))
    return network.top_five(logits)[0]
