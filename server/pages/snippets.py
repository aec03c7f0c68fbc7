"""Example client programs for this server. Each is complete and can be run as shown."""

from mimetypes import guess_extension
from pathlib import Path

from marina.config.record import Record
from marina.server.pages.schemas import DATATYPES, JSON, NPY


def programs(record: Record, *, server: str) -> dict[str, tuple[str, str]]:
    """The programs' titles and texts, by the id of their element on the page; `server` is `http://HOST:PORT`."""
    shown = {
        "curl": ("curl", _curl(record, server)),
        "python": ("Python", _python(record, server)),
        "requests": ("Python, requests", _requests(record, server)),
        "javascript": ("JavaScript", _javascript(record, server)),
    }
    if record.text is None and (tritons := _triton(record, server)):
        shown["triton"] = ("Python, tritonclient", tritons)
    if record.text is not None or (record.encoding is not None and record.encoding.task == "embed"):
        shown |= {
            "openai": ("Python, openai", _openai(record, server)),
            "openai-js": ("JavaScript, openai", _openai_javascript(record, server)),
        }
    return shown


def _curl(record: Record, server: str) -> str:
    file, kind, answer = _files(record)
    to_file = f" -o {answer}" if answer else ""
    return (
        f"curl -so {file} {server}/docs/sample\n"
        f"curl -H 'Content-Type: {kind}' --data-binary @{file} {server}/predictions/{record.url_name}{to_file}"
    )


def _python(record: Record, server: str) -> str:
    file, kind, answer = _files(record)
    shown = record.handler in ("image", "tensor") or record.encoding is not None
    as_json = shown and kind != NPY
    show = "print(json.load(urlopen(request)))" if as_json else "print(urlopen(request).read())"
    if answer:
        show = f'Path("{answer}").write_bytes(urlopen(request).read())'
    return (
        ("import json\n" if as_json else "") + "from pathlib import Path\n"
        "from urllib.request import Request, urlopen\n\n"
        f'body = Path("{file}").read_bytes()\n'
        f'request = Request("{server}/predictions/{record.url_name}", body, {{"Content-Type": "{kind}"}})\n'
        f"{show}\n"
    )


def _requests(record: Record, server: str) -> str:
    file, kind, answer = _files(record)
    shown = f'Path("{answer}").write_bytes(answer.content)' if answer else "print(answer.text)"
    return (
        ("from pathlib import Path\n\n" if answer else "") + "import requests\n\n"
        f'with open("{file}", "rb") as body:\n'
        f'    url, headers = "{server}/predictions/{record.url_name}", {{"Content-Type": "{kind}"}}\n'
        "    answer = requests.post(url, body, headers=headers)\n"
        "answer.raise_for_status()\n"
        f"{shown}\n"
    )


def _javascript(record: Record, server: str) -> str:
    file, kind, answer = _files(record)
    shown = "console.log(answer.status, await answer.text());"
    if answer:
        shown = f'await writeFile("{answer}", Buffer.from(await answer.arrayBuffer()));'
    return (
        f'import {{ readFile{", writeFile" if answer else ""} }} from "node:fs/promises";\n\n'
        f'const answer = await fetch("{server}/predictions/{record.url_name}", {{\n'
        '  method: "POST",\n'
        f'  headers: {{ "Content-Type": "{kind}" }},\n'
        f'  body: await readFile("{file}"),\n'
        "});\n"
        f"{shown}\n"
    )


def _files(record: Record) -> tuple[str, str, str | None]:
    """The sample's file name and content type; and a file name for the answer if a terminal cannot show it, such as a
    picture."""
    answer = None
    if record.gives is not None and not record.gives.content_type.startswith(("text/", JSON)):
        answer = f"answer{guess_extension(record.gives.content_type) or '.bin'}"
    return Path(record.sample.file).name, record.sample.content_type, answer


def _triton(record: Record, server: str) -> str | None:
    """A program for tritonclient. It sends the sample picture, a text, or arrays of zeros for your own values; None if
    the input is a query with documents."""
    if record.handler == "image" and record.sample.content_type.startswith("image/"):
        picture = f'np.array([open("{Path(record.sample.file).name}", "rb").read()], dtype=object)'
        arrays, datatypes = {"image": picture}, {"image": "BYTES"}
    elif record.encoding is not None and record.encoding.task not in ("answer", "rerank"):
        text = f"Hello. {record.encoding.mask}" if record.encoding.mask else "Hello."
        arrays, datatypes = {"text": f'np.array([b"{text}"], dtype=object)'}, {"text": "BYTES"}
    elif record.encoding is None and record.inputs:
        types = {port.name: "bool" if port.dtype == "bool" else f"np.{port.sent_as}" for port in record.inputs}
        arrays = {
            port.name: f"np.full({(1, *port.shape)}, {port.min or 0:g}, {types[port.name]})" for port in record.inputs
        }
        datatypes = {port.name: DATATYPES[port.sent_as] for port in record.inputs}
    else:
        return None
    host, listed = server.removeprefix("http://"), ", ".join(f'"{name}": {array}' for name, array in arrays.items())
    return (
        "import numpy as np\n"
        "import tritonclient.http as triton\n\n"
        f"arrays = {{{listed}}}\n"
        f"datatypes = {datatypes}\n"
        "inputs = [triton.InferInput(name, list(array.shape), datatypes[name]) for name, array in arrays.items()]\n"
        "for tensor, array in zip(inputs, arrays.values()):\n"
        "    tensor.set_data_from_numpy(array)\n"
        f'answer = triton.InferenceServerClient("{host}").infer("{record.name}", inputs)\n'
        'names = [output["name"] for output in answer.get_response()["outputs"]]\n'
        "print({name: answer.as_numpy(name).tolist() for name in names})\n"
    )


def _openai(record: Record, server: str) -> str:
    call = f'client.embeddings.create(model="{record.name}", input="Hello.").data[0].embedding'
    if record.text is not None:
        call = f'client.completions.create(model="{record.name}", prompt="Hello", max_tokens=8).choices[0].text'
    return f'from openai import OpenAI\n\nclient = OpenAI(base_url="{server}/v1", api_key="none")\nprint({call})\n'


def _openai_javascript(record: Record, server: str) -> str:
    call = f'await client.embeddings.create({{ model: "{record.name}", input: "Hello." }});'
    shown = "answer.data[0].embedding"
    if record.text is not None:
        call = f'await client.completions.create({{ model: "{record.name}", prompt: "Hello", max_tokens: 8 }});'
        shown = "answer.choices[0].text"
    return (
        'import OpenAI from "openai";\n\n'
        f'const client = new OpenAI({{ baseURL: "{server}/v1", apiKey: "none" }});\n'
        f"const answer = {call}\n"
        f"console.log({shown});\n"
    )
