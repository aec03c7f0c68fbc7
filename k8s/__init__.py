"""From spec, image and evidence to manifests (pure), to their verification, and to a rollout that waits."""
