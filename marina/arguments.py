"""What all verbs share: options, help texts, exit codes, and printing."""

import argparse
import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from marina.config.duration import HELP
from marina.config.errors import InputError, listed, nearest

if TYPE_CHECKING:
    from marina.config.spec import Spec

DEFECT, INTERRUPTED = 70, 130
EXIT_CODES = f"""\
exit codes:
  0    done
  1    the answer is no: FAIL, differences, errors found
  2    the input is wrong
  3    the measurement cannot be trusted
  {DEFECT}   a defect of marina itself
  {INTERRUPTED}  interrupted"""
DEFAULT_SPEC = Path("spec.yaml")
"""The spec in the current folder, for those who name none."""
BUILD = Path("build")
TRUST_PICKLE = "read files that Python unpickles, which runs whatever code is in them; only if you trust their makers"


_ARGPARSE_TEXTS = (
    (r"argument (\S+): (.*)", r"`\1`: \2"),
    (r"(.*)invalid float value: '(.*)'", r"\1got `\2`, allowed: a number"),
    (r"(.*)invalid int value: '(.*)'", r"\1got `\2`, allowed: a whole number"),
    (r"(.*)expected one argument", r"\1its value is missing"),
    (r"the following arguments are required: (.+)", r"`\1`: missing"),
)
"""Sentences of argparse, and how Marina says them."""


class Parser(argparse.ArgumentParser):
    """Raises an InputError where argparse would print a usage and exit."""

    def error(self, message: str) -> NoReturn:
        for pattern, text in _ARGPARSE_TEXTS:
            message = re.sub(f"^{pattern}$", text, message)
        raise InputError(message, hint=f"{self.prog} --help")

    def format_help(self) -> str:
        times = any(action.metavar == "TIME" for action in self._actions)
        return super().format_help() + (f"\n{HELP}\n" if times else "")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            close = nearest(str(value), action.choices)
            allowed = f"did you mean `{close}`?" if close else f"allowed: {listed(action.choices)}"
            self.error(f"argument {'/'.join(action.option_strings) or action.metavar}: got `{value}`, {allowed}")


class HelpFormatter(argparse.HelpFormatter):
    """Wraps a text of one line at the terminal's width, and leaves texts of several lines unchanged."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if "\n" in text else super()._fill_text(text, width, indent)


def add_verb(
    verbs: Any,
    run: Callable[[argparse.Namespace], int],
    text: str,
    *examples: str,
    spec: bool = True,
    exit_codes: str = EXIT_CODES,
    as_json: str = "the record",
    progress: bool = True,
) -> argparse.ArgumentParser:
    """Adds a verb, named after the function `run`, with the option --json, and with examples in its help. With `spec`,
    it takes a spec as an argument; if it shows `progress`, it has --quiet. `as_json` is what --json prints."""
    parser: argparse.ArgumentParser = verbs.add_parser(
        run.__name__,
        help=text,
        description=f"{text[0].upper()}{text[1:]}.",
        epilog="examples:\n  " + "\n  ".join(examples) + f"\n\n{exit_codes}",
        formatter_class=HelpFormatter,
    )
    if spec:
        shown = f"spec of the model (default: {DEFAULT_SPEC} in this folder)"
        parser.add_argument("spec", metavar="SPEC", type=Path, nargs="?", default=DEFAULT_SPEC, help=shown)
    parser.add_argument("--json", action="store_true", help=f"print {as_json} as JSON")
    if progress:
        parser.add_argument("--quiet", action="store_true", help="no progress on stderr")
    parser.set_defaults(run=run, parser=parser)
    return parser


def add_out_option(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Adds --out, the folder through which stages exchange their files."""
    text = "folder that holds NAME/model.mar and the records (default: build)"
    parser.add_argument("--out", metavar="DIR", type=Path, default=BUILD, help=text)
    return parser


def stage_options(kind: Any, options: argparse.Namespace) -> Any:
    """Builds a stage's options, a pydantic model, from the options that were given; InputError if one is out of
    range."""
    from pydantic import ValidationError

    given = {name: value for name in kind.model_fields if (value := getattr(options, name, None)) is not None}
    try:
        return kind(**given)
    except ValidationError as err:
        from marina.config.validation_errors import allowed_values

        first = err.errors()[0]
        name = str(first["loc"][0]).removesuffix("_s").replace("_", "-")
        raise InputError(f"`--{name}`: got `{first['input']:.12g}`, allowed: {allowed_values(first)}") from err


def refuse_ignored(options: argparse.Namespace, names: Iterable[str], why: str) -> None:
    """Raises an error if one of these options was given, which the verb would ignore."""
    for action in options.parser._actions:
        if action.dest in names and getattr(options, action.dest) != action.default:
            raise InputError(f"`{action.option_strings[0]}`: {why}")


def read_spec(options: argparse.Namespace) -> "Spec":
    """The spec, for verbs that need only what was made from it: the files that it names need not be on this machine."""
    from marina.config.load import load_spec

    spec: Path = options.spec
    return load_spec(spec, files=False)


def print_result(options: argparse.Namespace, record: Any, *lines: str) -> None:
    """Prints a verb's result: the record with `--json`, the lines without."""
    if options.json:
        print_json(record)
    else:
        print(*lines, sep="\n")


def print_json(data: Any) -> None:
    """Prints a record on stdout."""
    print(json.dumps(data, indent=2))
