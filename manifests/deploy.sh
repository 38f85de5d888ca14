#!/bin/sh
# What `make deploy` does: KUBECTL, IMAGE and OVERLAY say with what. Nothing is applied that the cluster would take
# only a part of; and where no pod gets ready, it says which, why, and how to look.
set -eu
: "${KUBECTL:=kubectl}" "${OVERLAY:=base}" "${TIMEOUT:=5m}"
here=$(dirname "$0")

if [ -z "${IMAGE:-}" ]; then
  echo 'Name an image that the cluster can pull: make deploy IMAGE=registry.example.com/trainjob-interlock:TAG' >&2
  exit 1
fi

# Why the cluster does not serve this group and version, and what to do.
why_not() {
  others=$(printf '%s\n' "$served" | grep "^${1%/*}/" | paste -s -d ' ' -)
  if [ -n "$others" ]; then
    echo "only $others. Write that in manifests/$OVERLAY, or an overlay of your own: docs/clusters.md has some."
    return
  fi
  case $1 in
    kueue.x-k8s.io/*) whose='Kueue is' ;;
    cert-manager.io/*) whose='cert-manager is' ;;
    monitoring.coreos.com/*) whose='the Prometheus Operator is' ;;
    *) whose='what defines it is' ;;
  esac
  echo "$whose not installed. Install it first, or choose another OVERLAY."
}

manifests=$($KUBECTL kustomize "$here/$OVERLAY")
served=$($KUBECTL api-versions) || { echo 'The cluster does not say what it serves. Nothing was applied.' >&2; exit 1; }
lacking=no
for version in $(printf '%s\n' "$manifests" | sed -n 's/^apiVersion: *//p' | sort -u); do
  if ! printf '%s\n' "$served" | grep -qxF "$version"; then
    echo "This cluster serves no $version: $(why_not "$version")" >&2
    lacking=yes
  fi
done
# The check and the monitoring stand beside a guard, in its namespace.
if ! printf '%s\n' "$manifests" | grep -qx 'kind: Namespace'; then
  found=$($KUBECTL get namespace trainjob-interlock --ignore-not-found --output=name) || lacking=yes
  if [ $lacking = no ] && [ -z "$found" ]; then
    echo "There is no namespace trainjob-interlock: the guard comes first, make deploy IMAGE=$IMAGE" >&2
    lacking=yes
  fi
fi
if [ $lacking = yes ]; then
  echo 'Nothing was applied.' >&2
  exit 1
fi

printf '%s\n' "$manifests" | sed "s|image: trainjob-interlock:.*|image: $IMAGE|" | $KUBECTL apply -f -

deployments=$(printf '%s\n' "$manifests" | $KUBECTL get --output=name --filename=- | grep '^deployment')
for deployment in $deployments; do
  namespaced="--namespace trainjob-interlock"
  # shellcheck disable=SC2086 # options
  if ! $KUBECTL $namespaced rollout status --timeout="$TIMEOUT" "$deployment"; then
    name=${deployment##*/}
    {
      echo "$deployment is applied, and not all of its new pods are ready after $TIMEOUT; those of before, if any, go on."
      $KUBECTL $namespaced get "$deployment" --output=go-template-file="$here/why-no-pod.gotemplate" || true
      $KUBECTL $namespaced get pods --selector="app.kubernetes.io/name=$name" \
        --output=go-template-file="$here/why-not-ready.gotemplate" || true
      echo "The last events: $KUBECTL $namespaced get events --sort-by=.lastTimestamp"
      echo "It goes on trying: $KUBECTL $namespaced rollout status $deployment"
    } >&2
    exit 1
  fi
done
