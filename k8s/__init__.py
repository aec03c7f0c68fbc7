"""From a spec to a service on Kubernetes: renders manifests, verifies them and rolls them out to a cluster. Of Marina's
packages it imports only `config`.

Its packages, each of which imports only the ones before it: monitoring, extending, manifests, platforms, simulating,
verify, cluster, rollout. Rendering and verifying manifests never loads the cluster's client."""
