"""Sources that lie elsewhere, as a spec writes them: on a hub, in a registry, in a store. Nobody is asked here."""

import re
from dataclasses import dataclass

# How each of them is written, by what it begins with.
_FORM_OF = {
    "az": "az://CONTAINER/PATH",
    "gs": "gs://BUCKET/PATH",
    "mlflow": "mlflow:models:/NAME@ALIAS",
    "oci": "oci://REGISTRY/NAME:TAG",
    "s3": "s3://BUCKET/PATH",
    "timm": "timm:NAME.TAG",
}
# What names one file and not a folder.
MODEL_SUFFIXES = (".ckpt", ".mar", ".pt", ".pt2", ".pth", ".pth.tar", ".safetensors", ".tar.gz", ".tgz")
_FORMS = tuple(
    re.compile(form + r"(?:#(?P<file>[^#\s]+))?")
    for form in (
        r"(?P<scheme>hf):(?P<place>[A-Za-z0-9][\w.-]*/[\w.-]+)(?:@(?P<version>[\w./-]+))?",
        r"(?P<scheme>timm):(?P<place>\w+(?:\.\w+)?)(?:@(?P<version>[\w./-]+))?",
        r"(?P<scheme>mlflow):(?P<place>models:/[^/@#\s]+)[@/](?P<version>[\w.-]+)",
        r"(?P<scheme>mlflow):(?P<place>runs:/\w+/[^@#\s]+)(?P<version>)",
        r"(?P<scheme>oci)://(?P<place>[\w.:-]+(?:/[\w.-]+)+)(?::(?P<tag>[\w.-]+))?(?:@(?P<version>sha256:[0-9a-f]{64}))?",
        r"(?P<scheme>s3|gs|az)://(?P<place>[^/#\s]+/[^#\s]+)(?P<version>)",
    )
)
# How others write the id of a model on Hugging Face's hub.
_HUB_IDS = re.compile(
    r"(?:hf[-_]hub:|hf://|huggingface:|https?://(?:www\.)?(?:huggingface\.co|hf\.co)/)([\w.-]+/[\w.-]+)(?:[/@:].*)?"
)
_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class Remote:
    """A source that lies elsewhere."""

    text: str
    """As the spec writes it."""
    scheme: str
    place: str
    """The model of a hub, NAME of a registry, or bucket and path of a store."""
    version: str | None
    """The branch, tag or commit, alias or number, tag or digest; None if there is none or it is not said."""
    file: str | None
    """The one file of it that is meant; None for all of them."""

    @property
    def is_folder(self) -> bool:
        """Whether the model's folder is meant, and not one file of it."""
        may_be_file = self.scheme in ("mlflow", "s3", "gs", "az")
        return self.file is None and not (may_be_file and self.place.endswith(MODEL_SUFFIXES))

    @property
    def one_file(self) -> str | None:
        """The path of the one file that is meant; None if the folder is."""
        return self.file or (None if self.is_folder else self.place.rpartition("/")[2])

    @property
    def is_pinned(self) -> bool:
        """Whether its version can never mean something else."""
        version = self.version or ""
        pinned = {
            "hf": bool(_COMMIT.fullmatch(version)),
            "timm": bool(_COMMIT.fullmatch(version)),
            "mlflow": version.isdecimal(),
            "oci": version.startswith("sha256:"),
        }
        return pinned.get(self.scheme, False)

    def pinned_to(self, version: str) -> str | None:
        """The text that means this version for good; None if its place keeps no versions."""
        between = {"hf": "@", "timm": "@", "oci": "@", "mlflow": "/"}
        if self.scheme not in between or (self.scheme == "mlflow" and not self.place.startswith("models:")):
            return None
        start = "oci://" if self.scheme == "oci" else f"{self.scheme}:"
        return f"{start}{self.place}{between[self.scheme]}{version}" + (f"#{self.file}" if self.file else "")


def parse_remote(text: str | None) -> Remote | None:
    """The source that a text means; None if it means nothing elsewhere."""
    for form in _FORMS:
        if text and (found := form.fullmatch(text)):
            part = found.groupdict()
            return Remote(text, part["scheme"], part["place"], part["version"] or part.get("tag") or None, part["file"])
    return None


def remote_form(text: str) -> str | None:
    """How the kind of source is written that a text begins as, well formed or not; None if it begins as none of them,
    nor as `hf:`, which may also be a folder."""
    return _FORM_OF.get(text.partition(":")[0]) if ":" in text else None


def meant_hub_id(text: str) -> str | None:
    """The `hf:` source that somebody means who writes a hub's id as others do; None if it is no such id."""
    if found := _HUB_IDS.fullmatch(text):
        return f"hf:{found[1]}"
    if _ID.fullmatch(text) and "/" in text:
        return f"hf:{text}"
    # A name of one word without an owner, such as `bert-base-uncased`.
    return f"hf:OWNER/{text}" if _ID.fullmatch(text) and "-" in text else None
