"""From a spec, an image and evidence to Kubernetes objects, and to a folder of files."""
