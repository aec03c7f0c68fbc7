"""FastAPI: a plain function, which FastAPI runs in its thread pool; a process a core, one text at a time."""

import os

from classifier import Classifier
from fastapi import FastAPI
from pydantic import BaseModel

app = FastAPI()
classifier = Classifier(os.environ["MODEL"])


class Body(BaseModel):
    text: str


@app.post("/predict")
def predict(body: Body):
    return classifier.answers([body.text])[0]
