"""A worker that is new again without TorchServe noticing: same process, same connection, fresh memory.

The supervisor asks with a file named after the worker's pid. Between two batches, when nothing is half read or half
answered, the worker renames it to `<pid>.busy`, replaces its own program (`exec`), keeps the open connection to
TorchServe, and loads the model again; what TorchServe sends meanwhile waits in that connection. Then it removes the
file. No request fails; those of one batch wait for the load, which must be shorter than `serving.response_timeout_s`.
"""

import json
import logging
import os
import socket
import sys
from pathlib import Path
from typing import Any

DIRECTORY = "MARINA_RENEW_DIR"


def arm(context: Any) -> None:
    """Lets this worker be renewed; call it once, in `initialize`."""
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
    """The renewed worker: what `ts.model_service_worker` does once it has a connection."""
    from ts.arg_parser import ArgParser
    from ts.metrics.metric_cache_yaml_impl import MetricsCacheYamlImpl
    from ts.model_service_worker import TorchModelServiceWorker

    logging.basicConfig(stream=sys.stdout, format="%(message)s", level=logging.INFO)
    connection = socket.socket(fileno=int(sys.argv[1]))
    load = {name: value for name, value in json.loads(sys.argv[2]).items() if value is not None}
    sys.argv[1:] = sys.argv[3:]
    # Not by its constructor, which makes a listening socket: TorchServe connected long ago.
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
