"""From a running server to a verdict that can be trusted. Of our packages it imports only `config`.

Its packages are measuring, scheduling, sending, judging, reporting, running, calibrating and comparing; each imports
only those before it, and what its `__init__` names is its interface. Beside them, `locustfile` and `closed_loop` add a
verdict to plain Locust.

Importing Locust patches the whole process, so load is always sent by separate processes, and no interface imports
Locust. This package imports nothing, because those processes need only some of the eight."""
