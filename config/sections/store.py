"""The section of a spec about where pods get the model from, if it is not in their image."""

import re
from urllib.parse import urlsplit

from pydantic import field_validator, model_validator

from marina.config.sections.section import CachePlace, ClaimedFile, ImageName, ObjectName, Section, check_port

_ADDRESS = re.compile(r"https?://[^\s/?#]+[^\s?#]*|(az|gs|s3)://[^\s/?#]+/[^\s?#]*[^\s/?#]")


class ModelStore(Section):
    """Where the pod gets the MAR from, if not from its image; its checksum is compared before the server starts."""

    url: str | None = None
    """Address from which an init container downloads the MAR: `https://…`, `s3://BUCKET/KEY`, `gs://BUCKET/KEY` or
    `az://CONTAINER/KEY`. Lands in the Deployment."""
    secret: ObjectName | None = None
    """A Secret that only the init container gets, mounted at `/store` and as environment variables: credentials such as
    `AWS_ACCESS_KEY_ID`, or, instead of `url`, a presigned address as `MODEL_URL`, which is written nowhere else. Lands
    in the Deployment."""
    claim: ClaimedFile | None = None
    """A PersistentVolumeClaim with the MAR, as `NAME/PATH`, without a path for `model.mar`; mounted read-only. Lands in
    the Deployment."""
    image: ImageName | None = None
    """An image with the MAR as `/model.mar`, mounted as a volume (Kubernetes 1.35, or from 1.31 with the feature gate
    ImageVolume). Lands in the Deployment."""
    cache: CachePlace | None = None
    """Where downloaded MARs are kept, so that the next pod need not download them again; old ones are never deleted. A
    PersistentVolumeClaim by its name, which every pod may write to (ReadWriteMany), or a folder of the node by its
    path, which the pods' user may write to, in a namespace that allows `hostPath`. Default: nowhere, each pod downloads
    its own. Lands in the Deployment."""

    @property
    def downloads(self) -> bool:
        """Whether the MAR is downloaded; otherwise it is mounted."""
        return self.claim is None and self.image is None

    @field_validator("url")
    @classmethod
    def _without_secrets(cls, url: str | None) -> str | None:
        if url is None:
            return url
        check_port(url)
        if "@" in urlsplit(url).netloc:
            raise ValueError("allowed: an address without user and password, which anyone who may read pods would see")
        if not _ADDRESS.fullmatch(url):
            allowed = "an address that begins with `http://`, `https://`, `s3://`, `gs://` or `az://`, without a query"
            raise ValueError(f"allowed: {allowed}; a presigned one goes into `secret` as `MODEL_URL`")
        return url

    @model_validator(mode="after")
    def _one_of_them(self) -> "ModelStore":
        given = [name for name in ("url", "claim", "image") if getattr(self, name) is not None]
        if len(given) != 1 and not (self.secret and not given):
            raise ValueError(
                "allowed: exactly one of `claim`, `image`, `url`, or `secret` alone with `MODEL_URL` in it"
            )
        for name in ("secret", "cache"):
            if not self.downloads and getattr(self, name) is not None:
                raise ValueError(f"{name}|but nothing is downloaded: delete it, or set `url`")
        return self
