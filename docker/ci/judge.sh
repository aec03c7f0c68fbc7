#!/usr/bin/env bash
# One job's judgement. Where a measurement cannot be trusted it ends with 0 and a warning: GitHub's steps have no neutral
# end, and a change is not to blame for a noisy runner.
set -uo pipefail

options=(--out "${OUT:-build}")
[ -z "${BASE:-}" ] || options+=(--base "$BASE")
[ -z "${MAX_DURATION:-}" ] || options+=(--max-duration "$MAX_DURATION")
[ "${COMMENT:-}" != true ] || options+=(--comment)
python -m marina ci "${SPEC:-spec.yaml}" "${options[@]}"
code=$?
[ "$code" -eq 3 ] && exit 0
exit "$code"
