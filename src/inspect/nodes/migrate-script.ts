interface MigrateOptions {
  readonly node: string
  readonly namespace: string
  /** Flags of kubectl that choose the cluster and the identity, one an item. */
  readonly kubectlFlags: readonly string[]
  /** A line for the shell that succeeds while the node serves; empty for none. */
  readonly check: string
  /** Time that each wait, and the watch after the change, may take, in seconds. */
  readonly timeoutS: number
}

/** The label by which the DaemonSets share the nodes (docs/hand-over.md). */
const LABEL = 'kprobe.io/proxy'

/** Keeps kube-proxy off nodes with the label, and changes nothing else of its DaemonSet. */
const AFFINITY = JSON.stringify({
  spec: {
    template: {
      spec: {
        affinity: {
          nodeAffinity: {
            requiredDuringSchedulingIgnoredDuringExecution: {
              nodeSelectorTerms: [
                { matchExpressions: [{ key: LABEL, operator: 'NotIn', values: ['kprobe'] }] },
              ],
            },
          },
        },
      },
    },
  },
})

/**
 * Gives a POSIX shell script that moves one node from kube-proxy to kprobe by kubectl, and back if a check fails. People
 * read it before they run it. Pure.
 */
export function migrateScript({ node, namespace, kubectlFlags, check, timeoutS }: MigrateOptions): string {
  const flags = [...kubectlFlags, `--namespace=${namespace}`].map(shellQuoted).join(' ')
  return `#!/bin/sh
# Moves the node ${node} from kube-proxy to kprobe, watches it, and goes back when it gets worse. Exits 0 when
# kprobe serves there, 3 when kube-proxy serves there again, 1 when the node was not changed, and 4 when it cannot go back.
set -u
node=${shellQuoted(node)}
timeout=${timeoutS}
kubectl() { command kubectl ${flags} "$@"; }
say() { echo "$node: $*" >&2; }
stop() { say "the node keeps kube-proxy: $*"; exit 1; }
check() { ${check === '' ? 'true' : `sh -c ${shellQuoted(check)}`}; }

${HELPERS}${STEPS}`
}

function shellQuoted(text: string): string {
  return `'${text.replaceAll("'", "'\\''")}'`
}

/** Functions of the script. */
const HELPERS = `# Prints the pods of an app on this node that do not end: a line with the name, and True if it is ready.
pods_of() {
  kubectl get pods --selector="k8s-app=$1" --field-selector="spec.nodeName=$node" \\
    --output=jsonpath='{range .items[*]}{.metadata.name} [{.metadata.deletionTimestamp}] {.status.conditions[?(@.type=="Ready")].status}{"\\n"}{end}' |
    awk '$2 == "[]" { print $1, $3 }'
}

# Prints the name of the ready pod of an app on this node; waits for it.
ready_pod() {
  for _ in $(seq 0 "$timeout"); do
    pod=$(pods_of "$1" | awk '$2 == "True" { print $1; exit }')
    if [ -n "$pod" ]; then echo "$pod"; return 0; fi
    sleep 1
  done
  return 1
}

back() {
  say "going back to kube-proxy: $*"
  kubectl label node "$node" ${LABEL}- || { say "cannot remove the label ${LABEL}; remove it when the API server answers"; exit 4; }
  ready_pod kube-proxy >/dev/null || { say "kube-proxy is not ready after $timeout s; the rules of kprobe stay and serve"; exit 4; }
  say "once kube-proxy has synced, remove kprobe's objects: kprobe cleanup (docs/hand-over.md, The way back)"
  exit 3
}

`

const STEPS = `# 1. The DaemonSets have to share the nodes by the label, and nothing may revert that.
kubectl get daemonset kprobe --output=jsonpath='{.spec.template.spec.nodeSelector}' | grep -q '"${LABEL}":"kprobe"' ||
  stop "the DaemonSet kprobe does not select nodes by ${LABEL}=kprobe (deploy/kubernetes/overlays/canary)"
proxy=$(kubectl get daemonset kube-proxy --output=jsonpath='{.metadata.labels} {.spec.template.spec.affinity}') ||
  stop "there is no DaemonSet kube-proxy; see the table of distributions in docs/hand-over.md"
case "$proxy" in *'"addonmanager.kubernetes.io/mode":"Reconcile"'*)
  stop "an add-on manager reverts each change of the DaemonSet kube-proxy; switch its add-on off first" ;;
esac
check || stop "the check fails already"

# 2. kube-proxy keeps off labelled nodes. The first time, its pods restart on all nodes; their rules stay.
case "$proxy" in *'${LABEL}'*) ;; *nodeSelectorTerms*)
  stop "kube-proxy's DaemonSet has node affinity, which a patch would replace: add to each of its terms the expression ${LABEL} NotIn kprobe" ;;
*)
  kubectl patch daemonset kube-proxy --patch=${shellQuoted(AFFINITY)} || stop "the DaemonSet kube-proxy cannot be patched"
  kubectl rollout status daemonset/kube-proxy --timeout="\${timeout}s" || stop "the rollout of kube-proxy's new affinity takes longer than $timeout s; run this script again when it has ended"
esac

# 3. The node changes its proxy.
trap 'back "interrupted"' INT TERM
kubectl label --overwrite node "$node" ${LABEL}=kprobe || stop "the node cannot be labelled"
pod=$(ready_pod kprobe) || back "kprobe is not ready after $timeout s"

# 4. It is watched for $timeout s: verify, health, rejected connections (more than one in twenty), and the check.
until=$(($(date +%s) + timeout))
while :; do
  [ "$(ready_pod kprobe)" = "$pod" ] || back "the pod $pod was replaced"
  kubectl exec "$pod" --container=kprobe -- kprobe verify >/dev/null || back "kprobe verify: objects, daemon and kernel differ"
  kubectl exec "$pod" --container=kprobe -- kprobe top --once --interval=5s --output=json |
    awk -F'[:,]' '/^  "perSecond"/ { n = $2 + 0 } /^  "rejectsPerSecond"/ { r = $2 + 0 } END { exit r > 0.05 * (n + r) && r > 1 }' ||
    back "more than one in twenty connections is rejected"
  check || back "the check fails"
  pods_of kube-proxy | grep -q . && back "kube-proxy is on the node again: something reverted its affinity"
  [ "$(date +%s)" -ge "$until" ] && break
done
trap - INT TERM
say "kprobe serves; where kube-proxy was in iptables mode, remove its chains:"
say "  kubectl exec $pod --container=kprobe -- kprobe cleanup --leftovers-of=kube-proxy"
`
