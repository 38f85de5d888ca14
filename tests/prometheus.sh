#!/usr/bin/env bash
# A folder with prometheus and promtool for PROMETHEUS_ASSETS: its name is the last line on standard output.
#
# They are those of Debian's package, taken out of it: nothing is installed, no service is started, and no setting
# of this machine's apt is changed. PROMETHEUS_CACHE chooses another cache.
# Exit status 3: not to be had here; the reason is one sentence on standard error.
set -euo pipefail

cache=${PROMETHEUS_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/trainjob-interlock/prometheus}
building=$cache/building
# What an earlier recipe made is no substitute for what this one makes.
made=$cache/bookworm-$(sha256sum < "${BASH_SOURCE[0]}" | cut -c1-8)

not_here() {
  echo "No real Prometheus: $1; where one is, name the folder of prometheus and promtool in PROMETHEUS_ASSETS." >&2
  exit 3
}

has_both() { [[ -x $1/prometheus && -x $1/promtool ]]; }

private_apt() {
  apt-get -qq -o Dir::Etc::SourceList="$building/sources.list" -o Dir::Etc::SourceParts=- \
    -o Dir::State::Lists="$building/lists" -o Dir::Cache="$building/cache" -o APT::Sandbox::User="$(id -un)" \
    -o Acquire::Languages=none -o Acquire::Retries=2 -o Acquire::http::Timeout=20 "$@" >&2
}

download() {
  # shellcheck disable=SC2016 # apt fills these in
  apt-get indextargets --no-release-info --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' |
    sort -u | sed -n '/ bookworm main$/ s/^/deb /p' > sources.list
  private_apt update && private_apt download prometheus
}

make_both() {
  grep -qs '^VERSION_CODENAME=bookworm$' /etc/os-release || not_here "this is not Debian bookworm, whose package it is"
  mkdir -p "$cache"
  exec 9> "$cache/lock"
  flock 9
  if has_both "$made"; then return; fi
  trap 'cd / && rm -rf "$building"' EXIT
  rm -rf "$building" "$made"
  mkdir -p "$building"/{lists,cache,assets}
  cd "$building"
  echo "Downloading Prometheus." >&2
  download || not_here "Debian's packages can't be reached"
  dpkg-deb -x prometheus_*.deb .
  mv usr/bin/prometheus usr/bin/promtool assets/
  mv assets "$made"
}

if [[ -n ${PROMETHEUS_ASSETS:-} ]]; then
  made=$PROMETHEUS_ASSETS
  has_both "$made" || { echo "PROMETHEUS_ASSETS names $made, where prometheus or promtool is missing." >&2; exit 1; }
elif ! has_both "$made"; then
  make_both
fi
echo "$made"
