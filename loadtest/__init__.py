"""From a running server to a verdict that can be trusted. Imports only `config` of ours.

Nothing here imports Locust except `engine`, `worker` and `locustfile`: importing Locust patches the whole process, so
load is always generated in processes of their own.
"""
