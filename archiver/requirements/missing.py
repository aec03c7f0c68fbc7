"""What to write for a module that was not found."""

from marina.config.spec import Spec

# Libraries whose module has another name; of OpenCV's, the one that needs no screen.
_LIBRARIES = {
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python-headless",
    "fitz": "pymupdf",
    "sentence_transformers": "sentence-transformers",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
}
# Libraries that handlers often import, under the names of their modules. Any other module may be the user's own, and an
# index may have a stranger's under that name.
_KNOWN = {
    *("boto3", "captum", "einops", "gensim", "kornia", "librosa", "lightgbm", "matplotlib", "monai", "nltk"),
    *("onnxruntime", "pandas", "pydantic", "requests", "scipy", "sentencepiece", "soundfile", "spacy", "timm"),
    *("tokenizers", "torchaudio", "torchvision", "tqdm", "transformers", "ultralytics", "xgboost"),
}


def known_library(module: str) -> str | None:
    """The well-known library that has a module; None if it may be anybody's."""
    return _LIBRARIES.get(module, module if module in _KNOWN else None)


def hint_for_missing(spec: Spec, module: str, owner: str | None = None) -> str:
    """What to do about a module that was not found; `owner` is the distribution that has it, if that is installed."""
    top = module.partition(".")[0]
    library = owner or _LIBRARIES.get(top, top)
    beside = f"if `{top}` is yours, put it beside the file that imports it"
    if spec.model.requirements:
        return f"add `{library}` to {spec.model.requirements}, or {beside}"
    runs_code = spec.model.adopted or spec.model.compile == "eager" or ".py:" in spec.model.handler
    if not runs_code:
        return f"pip install {library}, or {beside}"
    line = "requirements: ./requirements.txt"
    return f"`{line}` under `model`, with the line `{library}` in that file, or {beside}"
