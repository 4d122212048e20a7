#!/bin/bash
# The first process of a node: a whole cluster of one machine, in network, mount, process, IPC and host name spaces of its own.
# Ends, and everything with it, when it is killed. Its settings come as environment: BUILT, STATE, NAME, NODE, HOST, PODS, SERVICES, PYTHON.
set -eu
exec < /dev/null
PKI=$STATE/pki LOG=$STATE/log TOOLS=$BUILT/tools
hostname node1
mount --make-rslave /; mount --make-rshared /  # nothing that is mounted here is seen outside
mount -t proc proc /proc
mount -t tmpfs -o mode=755 tmpfs /run; mkdir -p /run/lock /run/netns /run/sbin
mkdir -p "$STATE"/{var-lib,var-log,kubelet,containerd} "$LOG"
mount --bind "$STATE/var-lib" /var/lib; mount --bind "$STATE/var-log" /var/log
mkdir -p /var/lib/kubelet /var/lib/cni /var/log/pods /var/log/containers
# The kubelet sets what belongs to the whole machine where it finds other values: it finds those that it wants.
printf '1\n' > /run/one; printf '10\n' > /run/ten; printf '0\n' > /run/zero
mount --bind /run/one /proc/sys/vm/overcommit_memory; mount --bind /run/one /proc/sys/kernel/panic_on_oops
mount --bind /run/ten /proc/sys/kernel/panic; mount --bind /run/zero /proc/sys/vm/panic_on_oom
printf 'nameserver 127.0.0.1\noptions timeout:1 attempts:1\n' > /run/resolv.conf; mount --bind /run/resolv.conf /etc/resolv.conf
printf '127.0.0.1 localhost\n%s node1\n' "$NODE" > /run/hosts; mount --bind /run/hosts /etc/hosts
for name in iptables iptables-save iptables-restore ip6tables ip6tables-save ip6tables-restore; do
  ln -s "$TOOLS/usr/sbin/xtables-legacy-multi" /run/sbin/$name
done
ln -s "$TOOLS"/usr/sbin/{conntrack,runc} "$TOOLS"/usr/bin/{containerd,containerd-shim-runc-v2,ctr} /run/sbin/
libraries=$TOOLS/usr/lib/x86_64-linux-gnu
export PATH=/run/sbin:$BUILT/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/run
export LD_LIBRARY_PATH=$libraries XTABLES_LIBDIR=$libraries/xtables
unset HTTP_PROXY HTTPS_PROXY http_proxy https_proxy NO_PROXY no_proxy ALL_PROXY all_proxy || true

ip link set lo up
for _ in $(seq 200); do ip link show eth0 > /dev/null 2>&1 && break; sleep 0.05; done
ip addr add "$NODE/30" dev eth0; ip link set eth0 up; ip route add default via "$HOST"
echo 1 > /proc/sys/net/ipv4/ip_forward  # of this network alone

run() { local name=$1; shift; "$@" > "$LOG/$name.log" 2>&1 & echo $! > "/run/$name.pid"; }
wait_for() { for _ in $(seq 1200); do "$@" > /dev/null 2>&1 && return 0; sleep 0.05; done; echo "gave up: $*"; return 1; }
is_ready() {
  "$PYTHON" -c "import ssl, urllib.request as r; r.urlopen('https://127.0.0.1:6443/readyz', context=ssl._create_unverified_context())"
}

mkdir -p /run/etcd; chmod 700 /run/etcd
GOGC=200 run etcd "$TOOLS/usr/bin/etcd" --data-dir /run/etcd --listen-client-urls http://127.0.0.1:2379 \
  --advertise-client-urls http://127.0.0.1:2379 --listen-peer-urls http://127.0.0.1:2380 --name default --unsafe-no-fsync \
  --initial-advertise-peer-urls http://127.0.0.1:2380 --initial-cluster default=http://127.0.0.1:2380
mkdir -p /run/cni /run/certs.d/_default
printf 'server = "http://127.0.0.1:1"\n' > /run/certs.d/_default/hosts.toml  # where nobody listens: nothing leaves the machine
cat > /run/cni/10-bridge.conflist << END
{"cniVersion": "0.4.0", "name": "pods", "plugins": [
 {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": false, "hairpinMode": true,
  "ipam": {"type": "host-local", "dataDir": "/run/cni-ipam", "ranges": [[{"subnet": "$PODS.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}
END
cat > /run/containerd.toml << END
version = 2
root = "$STATE/containerd"
state = "/run/containerd"
oom_score = 0
disabled_plugins = ["io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.zfs", "io.containerd.internal.v1.opt", "io.containerd.tracing.processor.v1.otlp"]
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "muster.test/pause:1"
  disable_apparmor = true
  restrict_oom_score_adj = true  # root without CAP_SYS_RESOURCE cannot lower it
  stream_server_address = "127.0.0.1"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "$TOOLS/usr/lib/cni"
    conf_dir = "/run/cni"
  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = "/run/certs.d"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      BinaryName = "$TOOLS/usr/sbin/runc"
      SystemdCgroup = false
END
run containerd containerd -c /run/containerd.toml
wait_for test -S /run/containerd/containerd.sock
for image in "$STATE"/images/*.tar; do
  wait_for ctr -a /run/containerd/containerd.sock -n k8s.io images import "$image"
done

run apiserver kube-apiserver --etcd-servers=http://127.0.0.1:2379 --bind-address=0.0.0.0 --secure-port=6443 \
  --advertise-address="$NODE" --allow-privileged=true --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction \
  --client-ca-file="$PKI/ca.crt" --tls-cert-file="$PKI/apiserver.crt" --tls-private-key-file="$PKI/apiserver.key" \
  --kubelet-certificate-authority="$PKI/ca.crt" --kubelet-client-certificate="$PKI/admin.crt" --kubelet-client-key="$PKI/admin.key" \
  --service-account-issuer=https://kubernetes.default.svc --service-account-key-file="$PKI/accounts.pub" \
  --service-account-signing-key-file="$PKI/accounts.key" --service-cluster-ip-range="$SERVICES.0/24" --profiling=false
cat > /run/kubelet.yaml << END
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: "$PKI/ca.crt"}}
authorization: {mode: Webhook}
tlsCertFile: "$PKI/kubelet.crt"
tlsPrivateKeyFile: "$PKI/kubelet.key"
cgroupDriver: cgroupfs
cgroupRoot: "/$NAME"
enforceNodeAllocatable: [none]
failSwapOn: false
nodeStatusUpdateFrequency: 1s  # by default 10 s, and the node would be ready as much later
evictionHard: {memory.available: "0%", nodefs.available: "0%", nodefs.inodesFree: "0%", imagefs.available: "0%"}
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
resolvConf: ""
serializeImagePulls: false
registryPullQPS: 0
eventRecordQPS: 0
kubeAPIQPS: 100
kubeAPIBurst: 200
featureGates: {LocalStorageCapacityIsolation: false}
END
wait_for is_ready
run controllers kube-controller-manager --kubeconfig="$PKI/controllers.kubeconfig" --root-ca-file="$PKI/ca.crt" --leader-elect=false \
  --service-account-private-key-file="$PKI/accounts.key" --use-service-account-credentials=true --profiling=false
run scheduler kube-scheduler --kubeconfig="$PKI/scheduler.kubeconfig" --leader-elect=false --profiling=false
run kubelet kubelet --config=/run/kubelet.yaml --kubeconfig="$PKI/kubelet.kubeconfig" --root-dir="$STATE/kubelet" \
  --container-runtime=remote --container-runtime-endpoint=unix:///run/containerd/containerd.sock \
  --hostname-override=node1 --node-ip="$NODE" --pod-infra-container-image=muster.test/pause:1
run proxy kube-proxy --kubeconfig="$PKI/proxy.kubeconfig" --proxy-mode=iptables --hostname-override=node1 --bind-address="$NODE" \
  --conntrack-max-per-core=0 --conntrack-min=0 --conntrack-tcp-timeout-established=0s --conntrack-tcp-timeout-close-wait=0s \
  --cluster-cidr="$PODS.0/24"
exec "$TOOLS/usr/bin/catatonit" -P
