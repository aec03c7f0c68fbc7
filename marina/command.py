"""`marina VERB`: the parser of all verbs, and the handling of their errors."""

import argparse
import errno
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from marina import ci, cluster, comparing, drilling, judging, measuring, packaging, serving, signing, simulating
from marina.arguments import DEFAULT_SPEC, DEFECT, EXIT_CODES, INTERRUPTED, HelpFormatter, Parser, print_json
from marina.config.distribution import distribution_version
from marina.config.errors import InputError, MarinaError, SpecError, nearest
from marina.extras import missing_extras
from marina.starting import demo, doctor, init
from marina.terminal import coloured, completion, localised, lost_output, prepare_streams

_FULL = (errno.EDQUOT, errno.ENOSPC)
_UNUSABLE = (errno.EACCES, errno.EEXIST, errno.EISDIR, errno.ENOENT, errno.ENOTDIR, errno.EPERM, errno.EROFS)
# In the order of the flow.
_VERBS = (
    init.add_verbs,
    packaging.add_verbs,
    serving.add_verbs,
    measuring.add_verbs,
    comparing.add_verbs,
    ci.add_verbs,
    judging.add_verbs,
    packaging.add_image_verb,
    signing.add_verbs,
    simulating.add_verbs,
    cluster.add_verbs,
    drilling.add_verbs,
    demo.add_verbs,
    doctor.add_verbs,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one verb, and returns its exit code."""
    prepare_streams()
    try:
        return _ended(_main(arguments))
    except SystemExit as ended:
        # A help or a usage was printed.
        raise SystemExit(_ended(int(ended.code or 0))) from None


def _ended(code: int) -> int:
    """The exit code of a verb that ended with `code`: not 0 if a part of what it printed is lost."""
    if failure := lost_output():
        print(f"error: not all of the output could be written: {failure}", file=sys.stderr)
        return code or InputError.exit_code
    return code


def _main(arguments: Sequence[str] | None) -> int:
    words = sys.argv[1:] if arguments is None else arguments
    options = argparse.Namespace(json="--json" in words)
    try:
        parsed, unknown = parser().parse_known_args(words)
        if unknown:
            _refuse(parsed.parser, unknown)
        options = parsed
        return _run(options)
    except MarinaError as raised:
        err = _missing_argument(raised, options) or raised
        if options.json:
            print_json(_error_record(err, options))
        else:
            print(coloured(localised(f"error: {err}", options), sys.stderr), file=sys.stderr)
        return err.exit_code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except Exception:
        # Python would exit with 1, which means that the answer is no.
        traceback.print_exc()
        print("this is a defect of marina: please report it, with the lines above", file=sys.stderr)
        return DEFECT


def _run(options: argparse.Namespace) -> int:
    try:
        code: int = options.run(options)
        return code
    except ModuleNotFoundError as err:
        if missing := missing_extras(options.run.__name__, err):
            raise missing from err
        raise
    except OSError as err:
        if unusable := _unusable_out(err, options):
            raise unusable from err
        raise


def _unusable_out(err: OSError, options: argparse.Namespace) -> InputError | None:
    """The error if the folder of `--out` cannot be used, or a disk is full; None if it is about something else."""
    out = getattr(options, "out", None)
    if out is not None and err.errno in _FULL:
        hint = "free some space there or in the folder for temporary files, or choose others by `--out` and TMPDIR"
        return InputError(f"{err.filename or out}: {err.strerror}", hint=hint)
    if out is None or not isinstance(err.filename, str) or err.errno not in _UNUSABLE:
        return None
    file, folder = Path(err.filename).absolute(), out.absolute()
    # A file in it that does not exist is another mistake.
    if folder.is_relative_to(file) or (file.is_relative_to(folder) and err.errno != errno.ENOENT):
        return InputError(f"`--out`: {err.filename}: {err.strerror}", hint="--out DIR, a folder that you may write to")
    return None


def parser() -> argparse.ArgumentParser:
    """The parser of the command line, with all verbs in the order of the flow."""
    whole = Parser(
        prog="marina",
        description="From a PyTorch model to a TorchServe service that is proven to meet its objective.",
        epilog=f"`marina VERB --help` shows the options of a verb, and examples.\n\n{EXIT_CODES}",
        formatter_class=HelpFormatter,
    )
    whole.add_argument("--version", action=_PrintAction, text=_version, help="print the version")
    text = 'print the completion for your shell: eval "$(marina --completion)"'
    whole.add_argument("--completion", action=_PrintAction, text=lambda: completion(whole), help=text)
    whole.set_defaults(run=_show_help, parser=whole)
    verbs = whole.add_subparsers(metavar="VERB")
    for add_verbs in _VERBS:
        add_verbs(verbs)
    return whole


def _show_help(options: argparse.Namespace) -> int:
    options.parser.print_help()
    return 0


def _missing_argument(err: MarinaError, options: argparse.Namespace) -> MarinaError | None:
    """A better error if no spec was named and there is none in this folder."""
    if err.message != f"{DEFAULT_SPEC}: no such spec":
        return None
    verb = options.run.__name__
    named = f"\n      marina {verb} NAME -n NAMESPACE, for what is deployed" if hasattr(options, "namespace") else ""
    hint = f"marina {verb} FOLDER/spec.yaml{named}\n      marina init FOLDER, to make one"
    return InputError(f"`SPEC`: missing, and this folder has no {DEFAULT_SPEC}", hint=hint)


class _PrintAction(argparse.Action):
    """An option that prints a text and ends the program; the text is computed only then."""

    def __init__(self, option_strings: Sequence[str], dest: str, text: Callable[[], str], help: str) -> None:  # noqa: A002
        super().__init__(option_strings, dest, nargs=0, default=argparse.SUPPRESS, help=help)
        self._text = text

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        print(self._text())
        parser.exit()


def _version() -> str:
    return f"marina {distribution_version()}"


def _refuse(used: argparse.ArgumentParser, unknown: list[str]) -> NoReturn:
    """Raises an error about an argument that the verb does not take, with the option that was probably meant."""
    name, known = unknown[0].partition("=")[0], [name for action in used._actions for name in action.option_strings]
    close = nearest(name, known) if name.startswith("-") else None
    if name in known:
        used.error(f"`{name}`: write it after the verb")
    kind = "option" if name.startswith("-") else "argument"
    used.error(f"`{name}`: unknown {kind}" + (f", did you mean `{close}`?" if close else ""))


def _error_record(err: MarinaError, options: argparse.Namespace) -> dict[str, Any]:
    hint = err.hint and localised(err.hint, options)
    record: dict[str, Any] = {"error": err.message, "hint": hint, "exit_code": err.exit_code}
    if isinstance(err, SpecError):
        record["problems"] = [vars(problem) for problem in err.problems]
    return record
