"""What people see of the command line: colours on a terminal, commands to copy, and completion in a shell."""

import argparse
import io
import os
import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from marina.arguments import BUILD
from marina.config.distribution import short_path

_RED, _GREEN, _YELLOW, _CYAN = 31, 32, 33, 36
_COLOURS = {
    "error:": _RED,
    "hint:": _CYAN,
    "PASS": _GREEN,
    "FAIL": _RED,
    "INVALID": _YELLOW,
    "sound": _GREEN,
    "NOT SOUND": _RED,
    "DAMAGED": _RED,
    "CODE": _YELLOW,
}
_CLUSTER_VERBS = ("deploy", "rollback", "status", "delete", "drill")
_FILE_VERBS = ("package", "serve", "loadtest", "calibrate", "compare", "image", "manifests", "simulate", "verify")
# The options that say where things are, and the verbs that take each.
PLACES = {"out": (*_FILE_VERBS, *_CLUSTER_VERBS), "context": _CLUSTER_VERBS, "kubeconfig": _CLUSTER_VERBS}
_WORD = re.compile(rf"^({'|'.join(map(re.escape, sorted(_COLOURS, key=len, reverse=True)))})(?=\s|$)", re.MULTILINE)


class _Unbreakable(io.FileIO):
    """A stream that drops what cannot be written, so that a full disk does not change what a verb does, nor does a
    reader that has left, as in `marina … | head`."""

    failure: str | None = None
    """Why something was lost that somebody may still want."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as err:
            if not isinstance(err, BrokenPipeError):
                self.failure = err.strerror
            return len(data)


def prepare_streams() -> None:
    """Makes stdout and stderr safe to print to, however this process was started: one that is closed drops what is
    printed, one that is full is waited for, and a character that its encoding lacks becomes `?`."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif stream is getattr(sys, f"__{name}__"):
            # Node.js, for example, hands on pipes that do not wait, and a write to a full one is an error.
            os.set_blocking(stream.fileno(), True)
            buffer = io.BufferedWriter(_Unbreakable(stream.fileno(), "w", closefd=False))
            lines = stream.line_buffering or stream.write_through
            setattr(sys, name, io.TextIOWrapper(buffer, stream.encoding, "replace", line_buffering=lines))


def lost_output() -> str | None:
    """Why a part of what was printed is lost; None if nothing is, or nobody read it to its end."""
    sys.stdout.flush()
    stream = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    return stream.failure if isinstance(stream, _Unbreakable) else None


def coloured(text: str, stream: TextIO) -> str:
    """The text with important words in colour, if the stream is a terminal that wants colours: https://no-color.org."""
    if not stream.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return text
    return _WORD.sub(lambda match: f"\x1b[1;{_COLOURS[match[1]]}m{match[1]}\x1b[0m", text)


def marina_command() -> str:
    """What to type for `marina` here: `marina` if the shell finds this installation by that name, or else what the user
    typed."""
    program = Path(sys.argv[0])
    if program.parts[-2:] == ("marina", "__main__.py"):
        return f"{shlex.quote(short_path(Path(sys.executable)))} -m marina"
    on_path = shutil.which("marina")
    if program.name != "marina" or (on_path and Path(on_path).resolve() == program.resolve()):
        return "marina"
    return shlex.quote(short_path(program))


def localised(text: str, options: argparse.Namespace | None = None) -> str:
    """The text with its `marina` commands as they work here; those in a hint or at the beginning of a line are changed.
    With the options that the user typed, `SPEC` becomes the spec, and options that say where things are follow it.
    Every `kubectl` gets those about the cluster."""
    text = re.sub(
        r"(?m)^(\s*(?:(?:hint|next):)?\s*)marina (?=[a-z-])(.*)$",
        lambda match: f"{match[1]}{marina_command()} {match[2] if options is None else _as_typed(match[2], options)}",
        text,
    )
    places = place_options("status", options) if options else []
    kubectl = " ".join(["kubectl", *(place for place in places if not place.startswith("--out "))])
    return re.sub(r"(?<![\w-])kubectl(?= [-a-z])", lambda _: kubectl, text)


def _as_typed(words: str, options: argparse.Namespace) -> str:
    """The words of a command with the spec and the places that the user typed, quoted for a shell."""
    spec = str(getattr(options, "spec", "SPEC"))
    if is_name(options):
        spec = "SPEC"  # only some verbs take a name
    words = re.sub(r"^([a-z]+) SPEC\b", lambda match: f"{match[1]} {spec}", words)
    words = re.sub(rf"(?<!\S){re.escape(spec)}(?![^\s,;])", lambda _: shlex.quote(spec), words)
    command = re.match(rf"([a-z]+) (?:SPEC|{re.escape(shlex.quote(spec))})(?![^\s,;])", words)
    if command is None:
        return words
    places = [place for place in place_options(command[1], options) if place.split()[0] not in words]
    return " ".join([command[0], *places]) + words[command.end() :]


def is_name(options: argparse.Namespace) -> bool:
    """Whether the user typed the name of a deployed service instead of a spec."""
    spec = getattr(options, "spec", None)
    named = getattr(options, "namespace", None) and re.fullmatch(r"[-a-z0-9]{1,40}", str(spec))
    return bool(named) and not Path(str(spec)).is_file()


def place_options(verb: str, options: argparse.Namespace) -> list[str]:
    """The typed options that say where the files and the cluster of a verb are, quoted for a shell."""
    given = {name: getattr(options, name, None) for name, verbs in PLACES.items() if verb in verbs}
    return [f"--{name} {shlex.quote(str(value))}" for name, value in given.items() if value not in (None, BUILD)]


def commands_text(commands: Sequence[tuple[str, str]], options: argparse.Namespace | None = None) -> str:
    """Commands to type next as a table, each with what it does."""
    shown = [(localised(command, options), text) for command, text in commands]
    width = min(72, max(len(command) for command, _ in shown))
    return "\n".join(["next", *(f"  {command:<{width}}  # {text}" for command, text in shown)])


def completion(whole: argparse.ArgumentParser) -> str:
    """The shell code that makes bash complete verbs, options and files; zsh can use it after `bashcompinit`."""
    verbs = next(action.choices for action in whole._actions if isinstance(action, argparse._SubParsersAction))
    cases = [f"    {verb}) words={_options(parser)!r} ;;" for verb, parser in verbs.items()]
    general = " ".join([*verbs, *_options(whole).split()])
    lines = (
        "_marina() {",
        '  local word="${COMP_WORDS[COMP_CWORD]}" words',
        '  case "${COMP_WORDS[1]}" in',
        *cases,
        "  esac",
        f"  [ $COMP_CWORD -gt 1 ] || words={general!r}",
        '  COMPREPLY=( $(compgen -W "$words" -- "$word") )',
        '  case "$word" in -*) ;; *) [ $COMP_CWORD -gt 1 ] && COMPREPLY+=( $(compgen -f -- "$word") ) ;; esac',
        "}",
        "complete -o filenames -F _marina marina",
    )
    return "\n".join(lines)


def _options(parser: argparse.ArgumentParser) -> str:
    return " ".join(name for action in parser._actions for name in action.option_strings if name.startswith("--"))
