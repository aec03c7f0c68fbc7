"""Imports the class of a user's own handler from its file."""

from archiver.archive import RESERVED_MODULES
from archiver.sources import import_file
from config.errors import SourceError, listed, nearest
from config.spec import Spec
from handlers.base import Handler


def load_own_handler(spec: Spec) -> type[Handler]:
    """The class that the spec names as its handler; SourceError if it is missing or not a handler."""
    where = f"{spec.file}: `model.handler`"
    text, _, name = spec.model.handler.partition(":")
    file = spec.path(text)
    module = file.stem
    if module in RESERVED_MODULES:
        raise SourceError(
            f"{where}: `{file.name}` would hide the module `{module}` in the worker", hint="rename the file"
        )
    loaded = import_file(spec, file, "model.handler")
    handler = getattr(loaded, name, None)
    if handler is None:
        classes = [key for key, value in vars(loaded).items() if isinstance(value, type)]
        close = nearest(name, classes)
        raise SourceError(
            f"{where}: `{file}` has no class `{name}`, found: {listed(classes) or 'none'}",
            hint=f"handler: {file.name}:{close}" if close else None,
        )
    if not (isinstance(handler, type) and issubclass(handler, Handler)):
        raise SourceError(
            f"{where}: `{name}` is not a handler",
            hint=f"class {name}(TensorHandler): …, with `from handlers import TensorHandler`",
        )
    return handler
