"""MLflow's own tracking server, with a folder to keep everything in. It needs a virtual environment of its own:

    python -m venv build/mlflow
    build/mlflow/bin/pip install mlflow-skinny alembic flask flask-cors graphene sqlalchemy

Its packages and ours want different versions of the same ones. Only the API is served, without the pages, which is all
that `mlflow server` adds."""

import os
import sys
from pathlib import Path

folder = Path(sys.argv[1])
os.environ |= {
    "_MLFLOW_SERVER_FILE_STORE": f"sqlite:///{folder}/store.db",
    "_MLFLOW_SERVER_ARTIFACT_DESTINATION": str(folder / "artifacts"),
    "_MLFLOW_SERVER_ARTIFACT_ROOT": "mlflow-artifacts:/",
    "_MLFLOW_SERVER_SERVE_ARTIFACTS": "true",
}

if __name__ == "__main__":
    from mlflow.server import app
    from werkzeug.serving import make_server

    server = make_server("127.0.0.1", 0, app, threaded=True)
    print(f"port {server.server_port}", flush=True)
    server.serve_forever()
