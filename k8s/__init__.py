"""From a spec to a service on Kubernetes: renders manifests, verifies them and rolls them out to a cluster. Of Marina's
packages it imports only `config`.

Its rooms, each of which imports only the ones before it: monitoring, extending, manifests, platforms, simulating,
verify, cluster, rollout. Only the last two load the cluster's client."""
