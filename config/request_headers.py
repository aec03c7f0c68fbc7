"""What requests say in their headers: the content type of a file, that an answer must not come from the cache, and that
a request is not traced."""

CONTENT_TYPES = {
    ".bmp": "image/bmp",
    ".flac": "audio/flac",
    ".gif": "image/gif",
    ".jpeg": "image/jpeg",
    ".jpg": "image/jpeg",
    ".json": "application/json",
    ".mp3": "audio/mpeg",
    ".npy": "application/x-npy",
    ".ogg": "audio/ogg",
    ".png": "image/png",
    ".tif": "image/tiff",
    ".tiff": "image/tiff",
    ".wav": "audio/wav",
    ".webp": "image/webp",
}
# Checks and measurements send it, because they would otherwise test the cache: `handlers/caching` neither answers such
# a request from the cache nor stores its answer.
UNCACHED = {"Cache-Control": "no-store"}
# The supervisor's own inferences are no traffic. No trace has these ids.
UNTRACED = {"traceparent": f"00-{1:032x}-{1:016x}-00"}
