"""The content types of sample files, by suffix."""

CONTENT_TYPES = {
    ".jpeg": "image/jpeg",
    ".jpg": "image/jpeg",
    ".json": "application/json",
    ".npy": "application/x-npy",
    ".png": "image/png",
    ".webp": "image/webp",
}
