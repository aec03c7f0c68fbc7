"""Starts Ray on this machine's cores with Serve's HTTP port, and serves one of the applications until it is ended."""

import importlib
import sys

import ray
from ray import serve

if __name__ == "__main__":
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    serve.start(http_options={"host": "127.0.0.1", "port": int(sys.argv[2])})
    serve.run(importlib.import_module(sys.argv[1]).app, blocking=True)
