#!/bin/bash
# Builds a real Kubernetes for the tests, from Debian's own source package: API server, controllers, scheduler, kubelet, proxy;
# and unpacks what runs beside them (etcd, containerd, runc, network plug-ins). Installs nothing. Once: the result is kept by
# version in ~/.cache/muster, where the tests look for it; without it they skip. Some 7 minutes on 2 cores, 2 GB meanwhile.
set -euo pipefail
VERSION=1.20.5+really1.20.2-1.1+deb12u1  # the last source package that has all of it; Debian 12
RECIPE=1                                  # counts the ways in which this has been built
CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/muster
TARGET=$CACHE/kubernetes-1.20.2-$RECIPE
BINARIES="kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy"
TOOLS="etcd-server containerd runc containernetworking-plugins iptables catatonit conntrack
       libnftnl11 libnetfilter-conntrack3 libnfnetlink0 libip4tc2 libip6tc2 libxtables12 libmnl0"
GO="golang-1.19-go golang-1.19-src golang-github-modern-go-reflect2-dev
    golang-github-json-iterator-go-dev golang-github-modern-go-concurrent-dev"

[ "${1:-}" = --where ] && { echo "$TARGET"; exit; }
[ -d "$TARGET" ] && exit
skip() { echo "No Kubernetes is built, and its tests will skip: $1"; exit 0; }
SOURCES=/etc/apt/sources.list.d/debian.sources
[ -f $SOURCES ] && grep -qs bookworm $SOURCES || skip "this is not Debian 12"
for program in apt-get dpkg-source; do command -v $program > /dev/null || skip "there is no $program"; done

mkdir -p "$CACHE"
exec 9> "$CACHE/.kubernetes-lock"
flock 9
[ -d "$TARGET" ] && exit  # another process has built it meanwhile
echo "Building Kubernetes for its tests, once: some minutes ($CACHE/kubernetes.log)"
exec > "$CACHE/kubernetes.log" 2>&1
BUILD=$(mktemp -d "$CACHE/.kubernetes-XXXXXX")
trap 'chmod -R u+w "$BUILD" 2> /dev/null; rm -rf "$BUILD"' EXIT

# Separate lists for apt, with source packages as well: the machine's own lists and packages stay as they are.
mkdir -p "$BUILD"/{apt/parts,apt/lists/partial,apt/cache/archives/partial,packages,go,result/bin,result/tools}
sed -E 's/^Types: deb$/Types: deb deb-src/' $SOURCES > "$BUILD/apt/parts/debian.sources"
cat > "$BUILD/apt/options" <<END
Dir::Etc::sourcelist "/dev/null";
Dir::Etc::sourceparts "$BUILD/apt/parts";
Dir::State::Lists "$BUILD/apt/lists";
Dir::Cache "$BUILD/apt/cache";
APT::Sandbox::User "root";
END
export APT_CONFIG=$BUILD/apt/options
apt-get -q update
cd "$BUILD/packages"
apt-get -q download $TOOLS $GO
for name in $TOOLS; do dpkg -x "${name}"_*.deb "$BUILD/result/tools"; done
for name in $GO; do dpkg -x "${name}"_*.deb "$BUILD/go"; done
apt-get -q source --download-only "kubernetes=$VERSION"

# Built in a GOPATH, as by Debian: in module mode Go 1.19 says "updates to go.mod needed".
SOURCE=$BUILD/gopath/src/k8s.io/kubernetes
mkdir -p "${SOURCE%/*}"
dpkg-source --no-check -x kubernetes_*.dsc "$SOURCE"
# The vendored versions of these packages crash if they are built by Go 1.18 or later.
for name in modern-go/concurrent modern-go/reflect2 json-iterator/go; do
  vendored=$SOURCE/vendor/github.com/$name
  rm -f "$vendored"/*.go "$vendored"/*.s
  cp "$BUILD/go/usr/share/gocode/src/github.com/$name"/*.{go,s} "$vendored/" 2> /dev/null || true
  rm -f "$vendored"/*_test.go
done
export GOROOT=$BUILD/go/usr/lib/go-1.19 GOPATH=$BUILD/gopath GOCACHE=$BUILD/gocache GOFLAGS= GOPROXY=off GO111MODULE=off
export CGO_ENABLED=0 HOME=$BUILD PATH=$BUILD/go/usr/lib/go-1.19/bin:$PATH
cd "$SOURCE"
# One generated file is not in the package.
go build -o "$BUILD/openapi-gen" k8s.io/kubernetes/vendor/k8s.io/kube-openapi/cmd/openapi-gen
folders=$( { grep -rl --include=*.go '+k8s:openapi-gen=' pkg
             for folder in vendor/k8s.io/*; do
               case $folder in */code-generator | */sample-* | */kube-openapi | */gengo) continue ;; esac
               grep -rl --include=*.go '+k8s:openapi-gen=' "$folder/" || true
             done; } | sed 's#//#/#; s#/[^/]*$##' | sort -u )
"$BUILD/openapi-gen" --logtostderr -i "$(printf 'k8s.io/kubernetes/%s,' $folders | sed 's/,$//')" \
  -p k8s.io/kubernetes/pkg/generated/openapi -O zz_generated.openapi \
  -h hack/boilerplate/boilerplate.generatego.txt -r /dev/null
FLAGS="-s -w"
for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
  FLAGS="$FLAGS -X k8s.io/kubernetes/vendor/$package.gitVersion=v1.20.2"
  FLAGS="$FLAGS -X k8s.io/kubernetes/vendor/$package.gitMajor=1 -X k8s.io/kubernetes/vendor/$package.gitMinor=20"
done
for name in $BINARIES; do
  nice -n 15 go build -p 2 -tags providerless,dockerless -ldflags "$FLAGS" -o "$BUILD/result/bin/$name" k8s.io/kubernetes/cmd/$name
done
rm -rf "$BUILD/result/tools/usr/share"
mv -T "$BUILD/result" "$TARGET"
