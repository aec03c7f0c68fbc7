"""Sends a schedule of requests on time, from separate processes.

No name in `__all__` imports Locust, which patches its whole process. The sending processes do, and `generate` starts
them."""

from marina.loadtest.sending.client import BROKEN, LIMITED, TIMEOUT, Checker, Client, RequestResult, send_and_check
from marina.loadtest.sending.generator import Generator, OnSecond, generate, running_generator
from marina.loadtest.sending.log_lines import read_record_lines, read_second_line
from marina.loadtest.sending.plan import Body, Header, LoadPlan, LoadRequest, Server, parse_header
from marina.loadtest.sending.processes import child_environment
from marina.loadtest.sending.recorder import StreamCounts
from marina.loadtest.sending.samples import content_type_of, expected_of, packaged_request, spec_request, with_samples
from marina.loadtest.sending.wire import BrokenAnswer, HttpAnswer

__all__ = [
    "BROKEN",
    "LIMITED",
    "TIMEOUT",
    "Body",
    "BrokenAnswer",
    "Checker",
    "Client",
    "Generator",
    "Header",
    "HttpAnswer",
    "LoadPlan",
    "LoadRequest",
    "OnSecond",
    "RequestResult",
    "Server",
    "StreamCounts",
    "child_environment",
    "content_type_of",
    "expected_of",
    "generate",
    "packaged_request",
    "parse_header",
    "read_record_lines",
    "read_second_line",
    "running_generator",
    "send_and_check",
    "spec_request",
    "with_samples",
]
