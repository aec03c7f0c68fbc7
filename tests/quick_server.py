"""`python -m marina.server`, but Java compiles less than usual, because no test's server runs for long, and with other
constants, which `TEST_CONSTANTS` has as JSON: `{"marina.server.java.follow.MOST_RPS": 5}`."""

import json
import os
import sys
from importlib import import_module

from marina.server.__main__ import main

for name, value in json.loads(os.environ.pop("TEST_CONSTANTS", "{}")).items():
    module, _, constant = name.rpartition(".")
    setattr(import_module(module), constant, value)
import_module("marina.server.java.launch").LARGE_MAR_BYTES = 0  # type: ignore[attr-defined]
sys.exit(main())
