"""The minor versions of Kubernetes that manifests are rendered for, verified against and deployed to."""

SUPPORTED_VERSIONS = tuple(f"1.{minor}" for minor in range(30, 38))
