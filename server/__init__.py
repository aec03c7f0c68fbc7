"""The supervisor: a process beside TorchServe that makes it fit for production. It runs one Java child, reports
readiness honestly, drains without losing a request, and shows all metrics on one page. Of our packages it imports only
`config`, and it never imports torch.

`serving` checks and starts everything, `supervisor` runs it from loading to stopped, and `fetch` gets the MAR in a pod.
The packages are system, java, watching and pages; each imports only those before it. Nothing is imported here, so that
`python -m marina.server` can handle signals before it imports the rest."""
