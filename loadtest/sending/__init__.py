"""A schedule of requests, and the processes that send it on time."""
