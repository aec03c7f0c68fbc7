"""Renews a worker without TorchServe noticing: same process, same connection, fresh memory.

The supervisor asks for it by creating a file named after the worker's pid. Between two batches, when nothing is half
read or half answered, the worker renames the file to `<pid>.busy`, replaces its own program (`exec`), keeps the open
connection to TorchServe, and loads the model again; whatever TorchServe sends meanwhile waits in the connection. Then
it removes the file. No request fails; those of one batch wait for the load, which must be shorter than
`serving.response_timeout_s`."""

import json
import logging
import os
import socket
import sys
from pathlib import Path
from typing import Any

DIRECTORY = "MARINA_RENEW_DIR"


def arm(context: Any) -> None:
    """Makes this worker renew itself on request; call it once, in `initialize`."""
    directory = os.environ.get(DIRECTORY)
    main: Any = sys.modules["__main__"]
    if not directory or not hasattr(main, "retrieve_msg"):
        return
    asked, receive = Path(directory) / str(os.getpid()), main.retrieve_msg
    properties = context.system_properties
    load = {
        "modelPath": properties["model_dir"],
        "modelName": context.model_name,
        "handler": context.manifest["model"]["handler"],
        "batchSize": properties["batch_size"],
        "gpu": properties["gpu_id"],
    }

    def receive_or_renew(connection: socket.socket) -> Any:
        if asked.exists():
            asked.rename(asked.with_suffix(".busy"))
            os.set_inheritable(connection.fileno(), True)
            words = [sys.executable, "-m", __name__, str(connection.fileno()), json.dumps(load), *sys.argv[1:]]
            os.execv(sys.executable, words)
        return receive(connection)

    main.retrieve_msg = receive_or_renew


def main() -> None:
    """Runs the renewed worker: does what `ts.model_service_worker` does once it has a connection."""
    from ts.arg_parser import ArgParser
    from ts.metrics.metric_cache_yaml_impl import MetricsCacheYamlImpl
    from ts.model_service_worker import TorchModelServiceWorker

    logging.basicConfig(stream=sys.stdout, format="%(message)s", level=logging.INFO)
    connection = socket.socket(fileno=int(sys.argv[1]))
    load = {name: value for name, value in json.loads(sys.argv[2]).items() if value is not None}
    sys.argv[1:] = sys.argv[3:]
    # Its constructor is skipped, because it creates a listening socket, and TorchServe is connected already.
    worker = TorchModelServiceWorker.__new__(TorchModelServiceWorker)
    worker.metrics_cache = MetricsCacheYamlImpl(ArgParser.model_service_worker_args().parse_args().metrics_config)
    worker.metrics_cache.initialize_cache()
    request = {name: value.encode() if isinstance(value, str) else value for name, value in load.items()}
    service, text, code = worker.load_model(request)
    if code != 200:
        raise SystemExit(text)
    service.set_cl_socket(connection)
    asked = Path(os.environ[DIRECTORY], str(os.getpid()))
    asked.with_suffix(".busy").unlink()
    while True:
        _, batch = retrieve_msg(connection)
        connection.sendall(service.predict(batch))


if __name__ == "__main__":
    from ts.protocol.otf_message_handler import retrieve_msg

    main()
