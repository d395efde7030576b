#!/bin/sh
# npm run demo [-- COMMAND]: a node with six pods and live traffic, in private namespaces: no root needed, and nothing of this machine is
# touched. Opens a shell in it, or runs COMMAND there. All of it ends with the shell.
set -eu
cd "$(dirname "$0")/../.."
. deploy/prepare.sh

if [ "${KPROBE_DEMO:-}" != inside ]; then
  prepare
  for tool in unshare nsenter ip; do
    command -v "$tool" >/dev/null || fail "npm run demo needs $tool, from the packages util-linux and iproute2."
  done
  unshare -Urnm true 2>/dev/null ||
    fail 'npm run demo needs private user and network namespaces, which this machine forbids (unshare -Urnm true).'
  # A process id namespace, so that the kernel ends every pod with the shell.
  KPROBE_DEMO=inside exec unshare -Urnmpf --mount-proc --kill-child sh deploy/demo/run.sh "$@"
fi

mount -t tmpfs demo /run
mkdir -p /run/netns /run/kprobe
ip link set lo up
ip link add node0 type veth peer name uplink0
ip address add 192.0.2.10/24 dev node0
ip link set node0 up
ip link set uplink0 up
ip route add default via 192.0.2.1 dev node0 onlink
for name in ip_forward conf/all/forwarding; do echo 1 >"/proc/sys/net/ipv4/$name" 2>/dev/null || true; done
for name in acct timestamp; do echo 1 >"/proc/sys/net/netfilter/nf_conntrack_$name" 2>/dev/null || true; done

# pod ADDRESS COMMAND...: a network namespace behind a link, as a network plugin makes it.
pod() {
  address=$1 link=pod${1##*.}
  shift
  unshare -n sleep infinity &
  holder=$!
  while [ "$(readlink /proc/$holder/ns/net)" = "$(readlink /proc/self/ns/net)" ]; do sleep 0.05; done
  ip link add "$link" type veth peer name eth0 netns "$holder"
  ip link set "$link" up
  ip route add "$address/32" dev "$link"
  echo 1 >"/proc/sys/net/ipv4/conf/$link/proxy_arp"
  nsenter --net="/proc/$holder/ns/net" sh -c "
    ip link set lo up; ip address add $address/32 dev eth0; ip link set eth0 up
    ip route add 169.254.1.1 dev eth0; ip route add default via 169.254.1.1 dev eth0"
  nsenter --net="/proc/$holder/ns/net" "$@" >/dev/null 2>&1 &
}
for last in 11 12 13 15; do pod "10.244.0.$last" node deploy/demo/pods.mjs serve; done
# Its answers leave by no route: an endpoint that is ready and silent.
pod 10.244.0.16 sh -c 'ip route replace blackhole default; exec sleep infinity'

node dist/kprobe.mjs run --source=file:deploy/demo/objects.yaml --hostname-override=demo --cluster-cidr=10.244.0.0/16 \
  --admin-socket=/run/kprobe/admin.sock --log-rejects=7 >/run/kprobe/log 2>&1 &
export DAEMON=$!
tries=0
until grep -q 'ok' /run/kprobe/ready 2>/dev/null; do
  tries=$((tries + 1))
  [ $tries -lt 200 ] || fail "kprobe did not start: $(tail -n 3 /run/kprobe/log)"
  node dist/kprobe.mjs verify >/dev/null 2>&1 && echo ok >/run/kprobe/ready || sleep 0.2
done
pod 10.244.0.20 node deploy/demo/pods.mjs ask

mkdir /run/bin
printf '#!/bin/sh\nexec node "%s/dist/kprobe.mjs" "$@"\n' "$PWD" >/run/bin/kprobe
chmod +x /run/bin/kprobe
PATH=/run/bin:$PATH
export PATH
[ $# -eq 0 ] || { "$@"; exit; }

cat <<'TEXT'
A node with the Services shop/cart (two pods), shop/mail (one pod), shop/search (two pods, one of which answers
nothing) and shop/coming-soon (none ready).
A pod connects to them ten times a second. Try:
  kprobe top
  kprobe flows --follow
  kprobe trace --service shop/cart --count 1
  kprobe drops --count 1
  kprobe why --from pod/shop/mail-a --to svc/shop/search
A daemon that stands still repairs nothing: damage the rules, see it, and let the daemon repair them (needs nft):
  kill -STOP $DAEMON; nft flush chain ip kube-proxy services; kprobe dump; kill -CONT $DAEMON; sleep 1; kprobe dump
`exit` ends all of it. The log of kprobe is /run/kprobe/log.
TEXT
# Commands from a pipe or a file need no prompt.
if [ -t 0 ]; then PS1='demo# ' sh -i; else sh; fi || true
