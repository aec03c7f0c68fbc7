"""A schedule of requests, and the processes that send it on time.

Nothing that this face names imports Locust, which patches its whole process: the processes that send do, and they are
started by `generate`.
"""

from loadtest.sending.answers import BROKEN, REFUSED, TIMEOUT, Checker
from loadtest.sending.client import Asked, Client, ask
from loadtest.sending.generator import Generator, OnSecond, generate, standing_generator
from loadtest.sending.headers import Header, header_of
from loadtest.sending.log_lines import record_in, second_in
from loadtest.sending.plan import Body, Expected, LoadPlan, Request, Server
from loadtest.sending.recorder import Heard
from loadtest.sending.sample import content_type_of, expected_of, packaged_request, spec_request
from loadtest.sending.samples import with_samples
from loadtest.sending.wire import HttpAnswer

__all__ = [
    "BROKEN",
    "REFUSED",
    "TIMEOUT",
    "Asked",
    "Body",
    "Checker",
    "Client",
    "Expected",
    "Generator",
    "Header",
    "Heard",
    "HttpAnswer",
    "LoadPlan",
    "OnSecond",
    "Request",
    "Server",
    "ask",
    "content_type_of",
    "expected_of",
    "generate",
    "header_of",
    "packaged_request",
    "record_in",
    "second_in",
    "spec_request",
    "standing_generator",
    "with_samples",
]
