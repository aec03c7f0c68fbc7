"""The minor versions of Kubernetes that manifests are made for, checked against and deployed to."""

_FIRST_MINOR, _LAST_MINOR = 30, 37
SUPPORTED_VERSIONS = tuple(f"1.{minor}" for minor in range(_FIRST_MINOR, _LAST_MINOR + 1))
