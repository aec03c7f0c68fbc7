"""From a running server to a verdict that can be trusted. Of our packages it imports only `config`.

Its rooms are measuring, scheduling, sending, judging, reporting, running, calibrating and comparing; each imports only
the rooms before it. Beside them, `locustfile` and `closed_loop` add a verdict to plain Locust.

Importing Locust patches the whole process, so load is always sent by separate processes, and no room imports Locust
with the names that it offers."""
