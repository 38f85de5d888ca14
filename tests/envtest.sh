#!/usr/bin/env bash
# A folder with kube-apiserver and etcd for KUBEBUILDER_ASSETS: its name is the last line on standard output.
#
# Debian has etcd as a package but kube-apiserver only as source, so that one is compiled: some minutes, once.
# Nothing is installed, and no setting of this machine's apt is changed. ENVTEST_CACHE chooses another cache.
# Exit status 3: not to be had here; the reason is one sentence on standard error.
set -euo pipefail

kubernetes=1.20.2
cache=${ENVTEST_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/trainjob-interlock/envtest}
building=$cache/building
# What an earlier recipe made is no substitute for what this one makes.
made=$cache/$kubernetes-$(sha256sum < "${BASH_SOURCE[0]}" | cut -c1-8)

not_here() {
  echo "No real API server: $1; where setup-envtest can get one, name its folder in KUBEBUILDER_ASSETS." >&2
  exit 3
}

has_both() { [[ -x $1/kube-apiserver && -x $1/etcd ]]; }

private_apt() {
  apt-get -qq -o Dir::Etc::SourceList="$building/sources.list" -o Dir::Etc::SourceParts=- \
    -o Dir::State::Lists="$building/lists" -o Dir::Cache="$building/cache" -o APT::Sandbox::User="$(id -un)" \
    -o Acquire::Languages=none -o Acquire::Retries=2 -o Acquire::http::Timeout=20 "$@" >&2
}

download() {
  # shellcheck disable=SC2016 # apt fills these in
  apt-get indextargets --no-release-info --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' |
    sort -u | sed -n '/ bookworm main$/ { s/^/deb /p; s/^deb /deb-src /p }' > sources.list
  private_apt update && private_apt source --download-only kubernetes && private_apt download \
    etcd-server golang-1.19-go golang-1.19-src golang-github-modern-go-reflect2-dev
}

described_packages() {
  grep -rlE --include='*.go' '^// *\+k8s:openapi-gen=' pkg vendor/k8s.io/*/ |
    grep -vE '^vendor/k8s.io/(code-generator|kube-openapi|sample-apiserver)/' | xargs -n1 dirname | sort -u
}

compile() {
  local go=$building/usr/lib/go-1.19/bin/go flags='-s -w'
  local type_validator=vendor/k8s.io/kube-openapi/pkg/validation/validate/type.go
  export GOROOT=${go%/bin/go} GOPATH=$building/go GOCACHE=$building/go-cache GOENV=off GO111MODULE=off CGO_ENABLED=0
  mkdir -p "$GOPATH/src/k8s.io/kubernetes"
  cd "$GOPATH/src/k8s.io/kubernetes"
  tar -xzf "$building"/kubernetes_*"really$kubernetes".orig.tar.gz --strip-components=1
  # Two parts know the insides of Go 1.15, with which 1.20 was released. Under Go 1.19 one iterates over maps into
  # memory that is not its own; Debian has its repaired version.
  rm -r vendor/github.com/modern-go/reflect2
  cp -r "$building/usr/share/gocode/src/github.com/modern-go/reflect2" vendor/github.com/modern-go/
  # The other takes a value for null that lies where Go keeps its zero value, as every empty string now does.
  sed -i 's/if data == nil || reflect.DeepEqual(.*) {$/if data == nil {/' $type_validator
  # The source lacks this generated file and does not compile without it.
  "$go" run ./vendor/k8s.io/kube-openapi/cmd/openapi-gen --logtostderr \
    --input-dirs "$(described_packages | sed 's|^|k8s.io/kubernetes/|' | paste -sd,)" \
    --output-package k8s.io/kubernetes/pkg/generated/openapi --output-file-base zz_generated.openapi \
    --go-header-file vendor/k8s.io/code-generator/hack/boilerplate.go.txt --report-filename "$building/violations"
  for package in k8s.io/kubernetes/vendor/k8s.io/{component-base,client-go/pkg}/version; do
    flags+=" -X $package.gitVersion=v$kubernetes -X $package.gitMajor=1 -X $package.gitMinor=20"
  done
  "$go" build -o "$building/assets/" -ldflags "$flags" ./cmd/kube-apiserver
}

make_both() {
  grep -qs '^VERSION_CODENAME=bookworm$' /etc/os-release || not_here "this is not Debian bookworm, whose packages make it"
  mkdir -p "$cache"
  exec 9> "$cache/lock"
  flock 9
  if has_both "$made"; then return; fi
  trap 'cd / && rm -rf "$building"' EXIT
  rm -rf "$building" "$made"
  mkdir -p "$building"/{lists,cache,assets}
  cd "$building"
  echo "Downloading etcd, the source of kube-apiserver $kubernetes and a Go compiler." >&2
  download || not_here "Debian's packages can't be reached"
  for package in *.deb; do dpkg-deb -x "$package" .; done
  cp usr/bin/etcd assets/
  echo "Compiling kube-apiserver $kubernetes; this takes some minutes." >&2
  (compile)
  mv assets "$made"
}

if [[ -n ${KUBEBUILDER_ASSETS:-} ]]; then
  made=$KUBEBUILDER_ASSETS
  has_both "$made" || { echo "KUBEBUILDER_ASSETS names $made, where kube-apiserver or etcd is missing." >&2; exit 1; }
elif ! has_both "$made"; then
  make_both
fi
echo "$made"
