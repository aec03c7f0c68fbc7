"""The supervisor: a process beside TorchServe that makes it fit for production. It runs one Java child, reports
readiness honestly, drains without losing a request, and shows all metrics on one page. Of our packages it imports only
`config`, and it never imports torch.

Its rooms are system, java, watching and pages; each imports only the rooms before it. Nothing is imported here, so that
`python -m server` can handle signals first."""
