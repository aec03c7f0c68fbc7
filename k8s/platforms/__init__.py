"""The same objects for other platforms than kubectl: a Helm chart, a KServe InferenceService; and whether files that
somebody committed are still what the spec renders."""

from k8s.platforms.forms import differences, write_form

__all__ = ["differences", "write_form"]
